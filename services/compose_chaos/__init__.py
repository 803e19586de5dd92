"""Chaos in docker compose: the stack of docker-compose.yml under load and many faults must end with exact totals.

    python -m services.compose_chaos --faults 24

`story` runs it from beginning to end. `faults` is pure: it draws from a seed what happens. `strikes` does it and
brings back evidence that it took hold. `docker` and `daemon` are the world.
"""
