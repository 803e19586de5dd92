"""What a value of one form becomes in another: text in typed fields, values in columns. Nothing is guessed, nothing rounded in silence.

The table of what is taken is in docs/columns.md.
"""
