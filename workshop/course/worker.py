"""Executes one notebook with papermill, in a process of its own that the runner can end.

`python -m workshop.course.worker JOB.json` prints an event per line on stdout (JSON): the
kernel has started, a cell has begun, the notebook has ended.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from workshop import processes
from workshop.course import results


def say(event: str, **values: Any) -> None:
    print(json.dumps({"event": event, **values}), flush=True)


def execute(job: dict[str, Any]) -> int:
    """Run `job["notebook"]` with `job["parameters"]` into `job["output"]`; 0 when every cell
    ran."""
    import papermill
    from nbclient.exceptions import DeadKernelError
    from papermill.clientwrap import PapermillNotebookClient
    from papermill.engines import NBClientEngine, papermill_engines
    from papermill.exceptions import PapermillExecutionError

    class Client(PapermillNotebookClient):
        """Tells when the kernel is up, so that its start does not count as the notebook's time."""

        def papermill_execute_cells(self) -> None:
            say("started")
            super().papermill_execute_cells()
            say("executed")

    class Engine(NBClientEngine):
        @classmethod
        def execute_managed_notebook(
            cls, nb_man: Any, kernel_name: str, start_timeout: int = 60, **options: Any
        ) -> Any:
            cell_start = nb_man.cell_start
            count = results.number_of(nb_man.nb.cells, len(nb_man.nb.cells))

            def cell_begins(cell: Any, cell_index: int | None = None, **kw: Any) -> None:
                number = results.number_of(nb_man.nb.cells, cell_index or 0)
                say("cell", number=number, cells=count)
                cell_start(cell, cell_index, **kw)

            nb_man.cell_start = cell_begins
            client = Client(
                nb_man, timeout=None, startup_timeout=start_timeout, kernel_name=kernel_name
            )
            return client.execute()

    papermill_engines.register("rn50", Engine)
    try:
        papermill.execute_notebook(
            job["notebook"],
            job["output"],
            parameters=job["parameters"],
            engine_name="rn50",
            kernel_name="python3",
            cwd=job["folder"],
            start_timeout=job["kernel_start_s"],
            progress_bar=False,
            autosave_cell_every=5,
            coalesce_streams=True,  # %%bash writes pieces of 100 characters
        )
    except PapermillExecutionError as error:
        say("failed", error=f"{error.ename}: {error.evalue}")
        return 1
    except DeadKernelError:
        why = "out of memory, or a library crashed: `dmesg` knows"
        say("failed", error=f"the kernel died ({why})")
        return 1
    return 0


def main() -> int:
    processes.die_with_parent()
    return execute(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")))


if __name__ == "__main__":
    sys.exit(main())
