"""Sweeps over numbers of workers and batch sizes: the reference's `benchmark`.

command   the flags, the sweep, the file and the tables
cells     one cell of the sweep, and the processes that measure cells
worker    what runs in those processes, and notes of every iteration when it ended
result    from reports to rates: harmonic means, percentiles, the JSON
"""
