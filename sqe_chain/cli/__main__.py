"""`python -m sqe_chain.cli`: the same as `sqe-chain`."""

from sqe_chain.cli import main

main()
