"""Compare `data_prep.verify` with bare decoding of the same files by Pillow and by simplejpeg.

    python benchmarks/bench_verify.py data/roadsigns/train --jobs 2

All read the files from the warm cache; the bare decoders do nothing else, in as many processes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rounds import child, print_table, run_rounds, timed

VERIFY_SETUP = (
    "from pathlib import Path\n"
    "from data_prep import verify\n"
    "folder, jobs = Path(sys.argv[1]), int(sys.argv[2])\n"
)
VERIFY = "verify.verify([folder], jobs if jobs > 1 else 0, quiet=True)"
BARE_SETUP = (
    "import io, multiprocessing\n"
    "from pathlib import Path\n"
    "from PIL import Image\n"
    "import simplejpeg\n"
    "paths = sorted(map(str, Path(sys.argv[1]).rglob('*.jp*g')))\n"
    "def pillow(path):\n"
    "    Image.open(io.BytesIO(open(path, 'rb').read())).load()\n"
    "def turbo(path):\n"
    "    simplejpeg.decode_jpeg(open(path, 'rb').read())\n"
    "decode = globals()[sys.argv[3]]\n"
    "jobs = int(sys.argv[2])\n"
    "pool = multiprocessing.get_context('fork').Pool(jobs) if jobs > 1 else None\n"
)
BARE = (
    "if pool:\n    pool.map(decode, paths, chunksize=64)\n    pool.close()\n    pool.join()\n"
    "else:\n    for path in paths:\n        decode(path)"
)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="class folders, all JPEG")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cpu", action="store_true", help="compare processor seconds")
    args = parser.parse_args()
    measure = "cpu_seconds" if args.cpu else "seconds"
    where = (args.folder.resolve(), args.jobs)
    commands = {
        "verify": child(VERIFY_SETUP, VERIFY, *where),
        "Pillow, decoding alone": child(BARE_SETUP, BARE, *where, "pillow"),
        "simplejpeg, decoding alone": child(BARE_SETUP, BARE, *where, "turbo"),
    }
    contestants = {name: (lambda c=c: timed(c, measure)) for name, c in commands.items()}
    count = sum(1 for _ in args.folder.rglob("*.jp*g"))
    print(f"{count:,} images, {args.jobs} processes, {measure}")
    print_table(run_rounds(contestants, args.rounds), "verify", count, "images")


if __name__ == "__main__":
    main()
