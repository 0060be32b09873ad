"""`rn50 diagnose`: where the time of an experiment goes, what would help, and by how much.

`measure` runs the parts and `bench` each of them once, `model` says how they add up, `changes` what
one could do about it; `diagnosis` puts that together, `show` and `picture` present it; `command` is
the verb.
"""
