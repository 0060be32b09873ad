"""The exercises and their checks.

`workshop/catalogue.py` lists them, `engine` and `compare` judge an answer, `records` keeps the
progress, `ask` and `use` are the calls of a learner, and `ex01` … are the checks.

A check is the function of an exercise's name in its notebook's module: `ex03.shard` is
`checks/ex03.py:shard`. It raises `compare.Wrong` with a diagnosis, or returns a sentence about what
is right. The table SHARD_MISTAKES holds its known mistakes. The hints are in `hints.md`.
"""
