"""The one bar of a group of workers: on the terminal of `rn50 run`, as theirs are pipes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from typing import Any

from rn50lib.progress import BAR, TOLD, tqdm

TICK_S = 0.5


class Bar:
    """Shows what rank 0 tells: what the group waits for, with the seconds so far, then its steps.

    It begins when it is entered, with `waits_for`.
    """

    def __init__(self, waits_for: str) -> None:
        self.waits_for = waits_for
        self.bar: Any = None
        self.lock, self.over = threading.RLock(), threading.Event()

    def __enter__(self) -> Bar:
        os.environ[BAR] = "1"  # the workers inherit it
        self.draw(self.waits_for)
        threading.Thread(target=self.tick, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.over.set()
        del os.environ[BAR]
        self.close()

    def line(self, text: str) -> None:
        """A line of a worker: what rank 0 tells is drawn, all else stands above the bar."""
        rank, marked, told = text.partition(TOLD)
        if not marked:
            tqdm.write(text, file=sys.stderr)
        elif rank.startswith("rank 0 "):
            with contextlib.suppress(ValueError):  # a launcher may cut a line
                self.draw(**json.loads(told))

    def draw(self, desc: str, total: int | None = None, n: int = 0, shown: str = "") -> None:
        """A new bar, or the same one further on: `n` of `total` steps are done."""
        with self.lock:
            if self.bar is None or (self.bar.desc, self.bar.total) != (desc, total):
                self.close()
                waits = {"bar_format": "{desc} ({elapsed})"} if total is None else {}
                self.bar = tqdm(desc=desc, total=total, initial=n, postfix=shown, unit="step",
                                leave=False, dynamic_ncols=True, **waits)  # fmt: skip
            self.bar.set_postfix_str(shown, refresh=False)
            self.bar.update(n - self.bar.n)
            self.bar.refresh()  # tqdm leaves out what comes close together, readings among it

    def tick(self) -> None:
        """Show that time goes by."""
        while not self.over.wait(TICK_S):
            with self.lock:
                if self.bar is not None:
                    self.bar.refresh()

    def close(self) -> None:
        with self.lock:
            if self.bar is not None:
                self.bar.close()
            self.bar = None
