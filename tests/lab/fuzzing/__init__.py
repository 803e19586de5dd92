"""Fuzzing: whatever bytes come, all ways of reading them give the one answer that the format asks for."""
