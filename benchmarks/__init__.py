"""How fast: figures, and ratios against a plain loop that does the same in the same minutes (`make bench`).

- `flows` has the computations, `backlog` makes the input, `plain` is the reference, `service` runs ours;
- `small` measures small batches, `parts` shows where the time goes, `machine` measures processor time and memory;
- `peers` compares with other systems (`make bench-peers`), `growth` shows how cost grows.

Nothing here asserts a time, but every benchmark asserts that its results are right.
"""
