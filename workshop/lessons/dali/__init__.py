"""Notebook 05: DALI's graph, and three loaders beside each other."""
