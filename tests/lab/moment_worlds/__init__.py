"""Worlds of windows of windows: what event time makes due in one flow is read by the windows of the next.

Uploads are exploded into hours, sessions or hopping windows, and these are counted by days in a flow behind. A naive fold of the rows
judges them.
"""
