"""The exercises: what there is (`table`), what a check asks of an answer (`compare`), how the
answer is judged (`engine`), what has been passed (`records`), what a learner calls (`ask`, `use`),
and the checks themselves (`ex01` …).

A check is the function of an exercise's name in its notebook's module: `ex03.shard` is
`checks/ex03.py:shard`. It takes the learner's answer, raises `compare.Wrong` with a diagnosis, and
returns a sentence on what it saw to be right. The hints of all exercises are in `hints.md`.
"""
