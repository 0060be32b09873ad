"""Notebook 02: the network, the recipe and a run on one device."""
