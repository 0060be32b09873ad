"""Notebook 07: forms of one checkpoint, their speed and their latency."""
