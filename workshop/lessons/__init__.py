"""Measurements and figures of the notebooks: one module for each lesson."""
