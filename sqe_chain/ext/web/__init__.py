"""A wing: a page for operators, and states over HTTP. Without a token it changes nothing."""
