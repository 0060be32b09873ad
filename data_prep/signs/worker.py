"""One drawing process: reads batches of picture numbers from stdin and writes the files.

    python -m data_prep.signs.worker NEW SPOOL SEED

A line `train 5 17 29` draws three pictures; the answer is the bytes written, or `error` and why.
It ends when stdin does, so that no worker outlives the program that started it, however that ended.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path


def main() -> int:
    new, spool, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle

    from data_prep.signs.assets import make_assets
    from data_prep.signs.compose import draw_jpeg
    from data_prep.signs.folder import picture_path

    assets = make_assets(seed)
    draft = spool / f"{os.getpid()}.jpg"
    try:
        for line in sys.stdin:
            split, *numbers = line.split()
            total = 0
            for index in map(int, numbers):
                data = draw_jpeg(assets, seed, split, index)
                draft.write_bytes(data)
                os.replace(draft, new / picture_path(split, index))
                total += len(data)
            print(total, flush=True)
    except OSError as error:
        try:
            print(f"error {error.strerror}: {error.filename or new}", flush=True)
        except BrokenPipeError:  # nobody listens any more: the program that started us is gone
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
