"""One worker of a benchmark, `python -m rn50lib.tools.benchmark.worker FILE`: the cells in FILE.

It goes through them one after the other and leaves in the folder of each the run's report and, when
all of it is done, `measured.json`. A cell without that file has failed. The first failure ends the
process: after one, neither the device's memory nor the other workers can be trusted.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
from pathlib import Path

from rn50lib import comm, launch
from rn50lib.config import Config
from rn50lib.errors import UserError
from rn50lib.launch.worker import run_worker
from rn50lib.report import write_json
from rn50lib.tools.benchmark.recorder import Recorder

WARM_UP = 3  # iterations of each split that come before the first that counts
DONE = "measured.json"
FAILED = "failed.txt"


def main() -> int:
    """Measure every cell; returns the exit status."""
    launch.die_with_parent()
    launch.end_on_sigterm()
    group = None
    for cell in json.loads(Path(sys.argv[1]).read_text()):
        folder = Path(cell["folder"])
        try:
            config = Config.read(folder / "experiment.json")
            if group is None:
                group = comm.connect(config.experiment.comm, config.experiment.backend)
            if group.rank == 0:
                launch.say(cell["title"])
            run_worker(config, folder, group, Recorder, WARM_UP)
            group.barrier()
        except KeyboardInterrupt:
            return 130
        except UserError as error:
            tell(folder, str(error))
            print(f"error: {error}", file=sys.stderr)
            return 2
        except Exception as error:
            first = next(iter(str(error).splitlines()), "")
            tell(folder, f"{type(error).__name__}: {first}")
            raise
        if group.rank == 0 and Recorder.last is not None:
            write_json(folder / DONE, Recorder.last.phases)
        gc.collect()  # the model of this cell is no longer needed, and the next may be larger
    return 0


def tell(folder: Path, reason: str) -> None:
    """Leave the reason of a failure; the first worker that fails is the one that knows."""
    with contextlib.suppress(OSError), open(folder / FAILED, "x") as file:
        file.write(reason)


if __name__ == "__main__":
    launch.end_with(main)
