"""What runs the tasks of a batch: Spark, worker processes on this machine, or this process (tests, notebooks, small flows)."""
