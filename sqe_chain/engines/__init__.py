"""What runs the tasks of a batch: Spark (the product), or this process (tests, notebooks, small flows)."""
