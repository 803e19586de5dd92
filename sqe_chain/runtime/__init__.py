"""One service in a process: its loop, heartbeat, signals, metrics, and the events that it emits while it runs."""
