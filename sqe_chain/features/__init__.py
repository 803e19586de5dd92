"""What only some flows need: a section of the plan each, and what the seven steps ask for because of it."""
