"""One service in a process: its loop, heartbeat, signals, metrics, and what it tells while it runs."""
