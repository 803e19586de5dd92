"""The protocol of a service: the numbered steps over the ports, and nothing else.

1. claim, 2. recover (once a run); 3. process, 4. seal, 5. publish, 6. persist (the last stage first),
7. commit (for each batch). `batch` has the loop. A flow with stages runs `with_plans`: once `claim`, `redo` and
`entering`, then for each batch `decide` and `processing` (3) and `finish` (4 to 7). A flow without stages needs no
store: `without_plans` reads, publishes, commits.

A crash between any two steps, before or after the effect, or with the reply lost, costs repeated work
and nothing else.
"""
