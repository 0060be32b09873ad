"""A `python3` kernel that is this interpreter, whatever kernels the machine has installed.

A user's own `python3` kernelspec may point to a different environment; the notebook would then run
with other versions than its page shows.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from workshop.course.build import KERNELSPEC


def with_kernelspec(env: dict[str, str], folder: Path) -> dict[str, str]:
    """Return an environment in which Jupyter's `python3` is this interpreter.

    The kernelspec is written below `folder`.
    """
    place = folder / "kernels" / "python3"
    place.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = {"argv": command, **KERNELSPEC}
    (place / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    paths = [str(folder), *filter(None, [env.get("JUPYTER_PATH")])]
    return {**env, "JUPYTER_PATH": os.pathsep.join(paths)}
