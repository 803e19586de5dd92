"""Generated from `proto/` by `scripts/generate_proto.py`; read by `sqe_chain.envelope.message` alone."""
