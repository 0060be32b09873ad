"""Notebook 04: an input pipeline, stage by stage."""
