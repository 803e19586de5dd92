"""Random worlds of event time, judged by one fold over all facts in the order of their times.

A world has root topics with a few partitions, none to two republishers on the way, and readers whose stages go by event time. Its
steps append facts, run batches, crash, rewind, rebuild and let time pass. The reference (`tests.lab.reference.event_times`) shares
no code with the package: it sorts first deliveries by time, topic, partition and offset, and folds them once.
"""
