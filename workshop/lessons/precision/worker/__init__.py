"""The processes that notebook 06 measures in: each is run as `python -m
workshop.lessons.precision.worker.NAME` by the module it belongs to, so that PyTorch and its memory
go with it.
"""
