"""Implementations of `sqe_chain.ports.Log`: `kafka` (the product) and `memory` (tests, notebooks).

Importing this package loads no driver.
"""
