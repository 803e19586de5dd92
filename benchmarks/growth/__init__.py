"""How cost grows: tables of one flow each, in which one thing varies (`make bench ARGS="--only growth"`).

`cases` has the tables, `records` their input, `child` measures one row in a process of its own. `running` takes turns
between the rows of a table and prints it.
"""
