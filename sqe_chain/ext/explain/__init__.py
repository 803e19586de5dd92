"""A wing: which records made a value, and what became of a record. It reads the topics again and changes nothing."""
