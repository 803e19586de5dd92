"""The demo: two services, killed again and again with SIGKILL, end with exactly right totals.

    python -m services.demo

`story` tells it from beginning to end. `life` and `kills` are pure: what a service's log lines mean, which
kills count, and when to strike next. `process`, `positions` and `progress` touch the world.
"""
