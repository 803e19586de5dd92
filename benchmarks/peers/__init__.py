"""How fast, next to others: the same records and functions on one broker (`make bench-peers`).

- `workloads` has what is computed and how results are checked, `records` makes the input, `systems` lists the systems;
- `installing` gets what they need, `running` runs and measures one of them, `results` sums up;
- `flows` has our computations, `kafka_streams/`, `flink/`, `quix_streams/` and `plain_loop/` have those of the others.

A system is a process or several, started again for each run. What it writes is checked, and a system with wrong results
gets no figures. Nothing here asserts a time.
"""
