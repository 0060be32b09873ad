"""Notebook 01: what a data set is made of, and how it looks after augmentation."""
