"""The protocol of a service: the numbered steps over the ports, and nothing else.

1. claim, 2. recover (once a run); 3. process, 4. seal, 5. publish, 6. persist (the last stage first),
7. commit (for each batch). `aggregation` runs them for a flow with stages: `claim` and `recovery` once, then `decide` and
`processing` (3) and `owned_flow` (4 to 7) for each batch. A flow without stages needs no store: `republish` reads,
publishes, commits.

A crash between any two steps, before or after the effect, or with the reply lost, costs repeated work
and nothing else.
"""
