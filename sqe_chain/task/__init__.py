"""What one task does: messages, marks and states in; outputs, units, changed states and new marks out.

A flow is cut into *levels*. Level 0 reads the inputs and runs the operators before any stage (`reading`).
Level k folds the stages that have k - 1 stages before them, and runs the operators after them (`level`). Between
levels, units are shuffled to their state partition and sorted into the order of units. Level 1 may run
*without a shuffle*, within the task that reads, when the inputs are partitioned just like the states.

Both engines run exactly this code.
"""
