"""Worlds in which records fail, and operators decide about them: real code over a broker in memory, judged by a naive count."""
