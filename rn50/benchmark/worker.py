"""One worker of a benchmark, `python -m rn50.benchmark.worker FILE`: the cells in FILE.

In the folder of each cell it leaves the run's report and, at the end, the empty file `measured`;
a cell without it has failed. The first failure ends the process, because the device's memory and
the other workers are then in an unknown state.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from pathlib import Path

from rn50 import launch, remedies  # noqa: F401 - registers what to run against an error
from rn50lib import distributed as comm
from rn50lib.config import Resolved
from rn50lib.distributed.launch_env import LaunchEnv
from rn50lib.errors import UserError, status_of
from rn50lib.files import NAMES
from rn50lib.lifetime import end_on_sigterm, end_with, registered
from rn50lib.train import train

WARM_UP = 3  # iterations of each split before the first that counts
DONE = "measured"
FAILED = "failed.txt"


def main() -> int:
    """Measure every cell; return the exit status."""
    end_on_sigterm()
    me = LaunchEnv.detect()
    with registered(me.rank if me else 0):
        return measure_cells()


def measure_cells() -> int:
    """Measure every cell in the file that is this program's argument."""
    group = None
    for cell in json.loads(Path(sys.argv[1]).read_text()):
        folder = Path(cell["folder"])
        try:
            resolved = Resolved.read(folder / "experiment.json")
            config = resolved.config
            if group is None:
                group = comm.connect(config.comm, config.backend, config.comm_timeout)
            if group.rank == 0:
                launch.say(cell["title"])
            train(resolved, folder, group, WARM_UP)
            group.barrier()
        except UserError as error:
            leave_reason(folder, str(error))
            raise
        except Exception as error:
            first = next(iter(str(error).splitlines()), "")
            leave_reason(folder, f"{type(error).__name__}: {first}")
            raise
        if group.rank == 0:
            (folder / DONE).touch()
        gc.collect()  # the model of this cell is no longer needed, and the next may be larger
    return 0


def leave_reason(folder: Path, reason: str) -> None:
    """Write the reason of a failure, unless a worker that failed earlier has written its own."""
    with (
        contextlib.suppress(OSError),
        open(folder / FAILED, "xb") as file,
    ):
        file.write(reason.encode(errors=NAMES))


if __name__ == "__main__":
    end_with(lambda: status_of(main))
