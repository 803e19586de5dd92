"""Two services on real servers through many faults, in pieces whose figures add up; `python -m tests.lab.campaign`."""
