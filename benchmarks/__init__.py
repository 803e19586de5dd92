"""How fast: figures, and ratios against a plain loop that does the same in the same minutes (`make bench`).

`flows` says what is computed, `backlog` makes the input, `plain` is the reference, `service` runs ours,
`small` measures what is not a backlog, `parts` where the time goes, `machine` what all of it costs. Nothing here asserts a time, but
everything asserts that its results are right.
"""
