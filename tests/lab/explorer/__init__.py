"""All interleavings of a few runs with crashes and lost replies, breadth first; not for users.

The runs are those of the product, and so are the store and the log; nothing of the protocol is modelled. A run that waits for
the answer to a call of a port is a Python stack, which cannot be copied. But a run is a function of the answers that it got: so
what is kept of it is this history, and what it does after one more answer is found by running it again, once for each
history. What a call does is found by making it, once for each content of what it reads and writes. A state of the whole is
then a few numbers.
"""
