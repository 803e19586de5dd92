"""Data and ports of the steps: plans and their layouts, what a batch is cut from, settings, events, results, the outside of a run.

Nothing here decides what a run does. `sqe_chain.features` adds sections to plans, and `sqe_chain.protocol` has the steps.
"""
