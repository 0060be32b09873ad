"""Notebook 03 starts its own scripts on several ranks by these, as one types the launchers' names.

A script that needs Horovod is passed over where Horovod is not built for its framework, and that is
said.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from rn50.workers import horovod_serves
from workshop import output
from workshop.programs import run_script


def horovodrun(
    script: str | os.PathLike,
    *arguments: object,
    np: int,
    framework: str = "torch",
    env: Mapping[str, str] | None = None,
) -> None:
    """`horovodrun -np NP python SCRIPT ARGUMENTS...`, as `workshop.run_script` runs it."""
    if not horovod_serves(framework):
        text = (
            f"Horovod is not built for {framework} here, so this script is not run: `make horovod`"
            " builds it."
        )
        output.show(f'<p class="box warn">{text}</p>', text)
    else:
        run_script(script, *arguments, np=np, env=env)


def torchrun(script: str | os.PathLike, *arguments: object, np: int) -> None:
    """`torchrun --nproc-per-node NP SCRIPT ARGUMENTS...`, as `workshop.run_script` runs it."""
    run_script(script, *arguments, np=np, launcher="torchrun")
