"""A wing: a page for operators, and states over HTTP. It changes nothing."""
