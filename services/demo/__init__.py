"""The demo: two services are killed with SIGKILL again and again, and their totals are still exact.

    python -m services.demo

`story` runs it from beginning to end; `totals` is what this demo is about, and `services.demo_ingest` is another one.
`life` and `kills` are pure: the meaning of a service's log lines, which
kills count, and when to kill next. `process`, `positions` and `progress` do the input and output.
"""
