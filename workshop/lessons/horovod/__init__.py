"""Notebook 03: many workers, their exchange, their mistakes and their timeline."""
