"""Notebook 08: sweeps, and what more GPUs would do."""
