"""All interleavings of a few runs with crashes and lost replies, breadth first; not for users.

The runs are those of the product, and so are the store and the log; nothing of the protocol is modelled. A run that waits for
the answer to a call of a port is a Python stack, which cannot be copied. But a run is a function of the answers that it got.
So the explorer keeps this history. It finds what the run does after one more answer by running it again, once for each
history. It finds what a call does by making it, once for each content of what it reads and writes. A state of the whole is
then a few numbers.
"""
