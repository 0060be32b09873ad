"""Sweeps over numbers of workers and batch sizes, as the reference's `benchmark`."""
