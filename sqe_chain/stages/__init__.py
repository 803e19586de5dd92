"""The kinds of stages, one file each, pure: they know no store and no log."""
