"""`rn50 diagnose`: where the time of an experiment goes, what would help, and by how much.

`command` is the verb. `diagnosis` measures every part once, by `measure` and `probe`; `model` says
how they add up, `changes` what one could do about it; `show` presents it.
"""
