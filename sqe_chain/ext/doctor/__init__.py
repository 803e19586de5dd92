"""A wing: checks everything that the guarantees of a flow rest on, and gives the command for each finding."""
