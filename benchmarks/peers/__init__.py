"""How fast, next to others: the same records and functions on one broker (`make bench-peers`).

`workloads` says what is computed and how results are checked, `records` makes the input, `systems` lists who takes
part, `installing` gets what they need, `running` runs and measures one of them, `results` sums up.
`flows` has our computations, `kafka_streams/`, `quix/` and `plain/` have those of the others.

A system is a process or several, started anew for each run. What it writes is checked, and one whose results are
wrong gets no figures. Nothing here asserts a time.
"""
