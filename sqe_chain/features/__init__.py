"""What only some flows need, each hanging on the seven steps by the hooks of `sqe_chain.protocol.feature`."""
