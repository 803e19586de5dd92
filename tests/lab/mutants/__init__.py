"""Deliberate bugs: each has to be killed by the tests that it names, and by the simulator where it concerns the protocol."""
