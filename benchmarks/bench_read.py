"""Compare reading of a record file, in order and at random, with MXNet's reader.

    python benchmarks/bench_read.py data/roadsigns/records/train --mxnet-python VENV/bin/python

Both sides return owned bytes and take one CRC over each payload; imports and opening are left out.
"""

from __future__ import annotations

import argparse

from rounds import ROOT, child, print_table, run_rounds, summarise, timed

SETUP = (
    "import random, zlib\n"
    "from rn50lib.data.recordio import Reader\n"
    "how, prefix = sys.argv[1:]\n"
    "reader = Reader(prefix + '.rec')\n"
    "order = list(range(len(reader)))\n"
    "if how == 'random':\n"
    "    random.Random(0).shuffle(order)\n"
)
WORK = "for i in order:\n    zlib.crc32(reader.read(i))"


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prefix")
    parser.add_argument("--mxnet-python", required=True)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cpu", action="store_true", help="compare processor seconds")
    args = parser.parse_args()
    measure = "cpu_seconds" if args.cpu else "seconds"
    with open(f"{args.prefix}.idx") as index:
        count = sum(1 for _ in index)
    peer = [args.mxnet_python, str(ROOT / "benchmarks" / "peer_mxnet_read.py")]
    for how in ("order", "random"):
        commands = {
            "ours": child(SETUP, WORK, how, args.prefix),
            "MXNet": [*peer, how, args.prefix],
        }
        contestants = {name: (lambda c=c: timed(c, measure)) for name, c in commands.items()}
        print(f"{count:,} records, {'in' if how == 'order' else 'at'} {how}, {measure}")
        seconds = run_rounds(contestants, args.rounds)
        print_table(seconds, "ours", count, "records")
        summarise(seconds, [("ours", "MXNet")], f"reading, {how}, {measure}")


if __name__ == "__main__":
    main()
