"""Notebook 06: formats, memory, the loss scale and the roofline."""
