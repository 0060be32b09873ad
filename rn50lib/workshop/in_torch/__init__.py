"""The processes that notebook 06 measures in: PyTorch is imported here, and nowhere else beside the
notebooks. Each is run as `python -m rn50lib.workshop.in_torch.NAME`, by the module it belongs to;
only `two_weights` is imported, by an exercise's check.
"""
