"""Run the same short list of commands in two checkouts, and print what differs.

    python scripts/goldens.py CHECKOUT_A CHECKOUT_B                      # everything but speed
    python scripts/goldens.py A B --only "weights torch" reports         # parts of items' names
    python scripts/goldens.py A B --speed --only "speed step"            # the ratio of their speeds

Weights and speeds depend on the processor, so no values are stored: each item runs in both
checkouts, one right after the other, on this machine and with this Python. The exit status is 1 if
an item differs or fails. Items whose package or program is not installed are skipped.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "benchmarks"))
from measure import print_table, run_rounds  # noqa: E402

ROUNDS = 5  # of --speed; one more before them warms the caches
# 36 images make 4 steps an epoch and an incomplete batch; 20 for validation need padding.
DRAW = "-m data_prep.roadsigns data --seed 7 --records --tfrecord --val 20 --train "
TRAIN = "--recipe reference --image-shape 32 -b 8 -e 2 --lr 3 --warmup-epochs 1 --seed 3"
TRAIN += " --threads 1 --data-nthreads 2"
RESNET = "--num-layers 18 --dtype float32 --lr-step-epochs 1.5"
HALF = "--network tiny --dtype float16 --lr-step-epochs 1.5"  # with a loss scale, on any machine
TINY = "--recipe reference --network tiny --image-shape 32 --data-root data --threads 1"
FORMATS = {form: f"--data-format {form} --data-root {root}" for form, root in (
    ("files", "data"), ("recordio", "data/records"), ("tfrecord", "data/tfrecord"))}  # fmt: skip
LAUNCHERS = {"torchrun": "ddp", "horovodrun": "horovod", "mpirun": "horovod"}
LOADERS: dict[str, tuple[str, ...]] = {"native": (), "dali": ("nvidia.dali",)}  # and what they need

Values = dict[str, Any]  # what an item finds in one checkout; the first value is shown


class Failed(Exception):
    """A command that failed in one checkout, with the last line that it printed."""


class Item(NamedTuple):
    """A name, what to find out in a checkout, and what that needs."""

    name: str
    find: Callable[[Side], Any]
    needs: tuple[str, ...] = ()  # packages and programs


class Side:
    """A checkout, and the folder in which its commands run."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root.resolve(), folder
        folder.mkdir()
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("RN50_")} | {
            "PYTHONPATH": str(self.root), "RN50_RUNS": str(folder / "runs"),
            "RN50_DATA": str(folder / "default"), "XDG_CACHE_HOME": str(folder / "cache"),
        }  # fmt: skip
        used = self.python("-c", "import rn50lib; print(rn50lib.__file__)").strip()
        if not Path(used).is_relative_to(self.root):
            raise Failed(f"{root} is not a checkout: Python imports {used}")

    def rn50(self, *words: str) -> str:
        """Run `rn50 WORDS` and return its standard output."""
        return self.python("-m", "rn50", *words)

    def python(self, *words: str) -> str:
        """Run `python WORDS` and return its standard output. Raise Failed if it fails."""
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        if done.returncode:
            last = [line for line in done.stderr.splitlines() if line] or ["no message"]
            raise Failed(f"exit {done.returncode}: {last[-1]}")
        return done.stdout

    def new(self, name: str) -> Path:
        """Make an empty folder."""
        shutil.rmtree(self.folder / name, ignore_errors=True)
        (self.folder / name).mkdir()
        return self.folder / name

    def train(self, name: str, flags: str) -> Path:
        """Train with flags, and return the new folder that holds the checkpoints and the report."""
        folder = self.new(name)
        files = ["--model-prefix", f"{name}/m", "--report", f"{name}/report.json"]
        self.rn50("run", *files, "--run-dir", f"{name}/run", *flags.split())
        return folder


def weights(flags: str, side: Side) -> Values:
    """Train; return a CRC of the newest checkpoint's tensors, the network, and the metrics."""
    folder = side.train("trained", flags)
    metrics = json.loads((folder / "report.json").read_text())["metrics"]
    kept = {k: v for k, v in metrics.items() if not k.endswith((".time", ".total_ips"))}
    network = json.loads((folder / "m-symbol.json").read_text())
    return {"weights": crc_of_tensors(folder / "m-0002.safetensors"), **kept, "network": network}


def crc_of_tensors(file: Path) -> str:
    """Return a CRC of the names, types, shapes and bytes of a checkpoint's tensors alone."""
    from safetensors.numpy import load_file

    value = 0
    for name, array in sorted(load_file(file).items()):
        value = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes(), value)
    return f"{value:08x}"


def reports(side: Side) -> Values:
    """Return the keys, in their order, of what run, score and benchmark write."""
    folder, tiny = side.train("reports", f"{TINY} -e 1"), TINY.split()
    side.rn50("score", "reports/m", "1", *tiny, "--report", "reports/score.json")
    sweep = ["-n", "1", "-b", "4,8", "-i", "3", "-o", "reports/benchmark.json"]
    side.rn50("benchmark", *tiny, *sweep)
    found: Values = {}
    for name in ("report", "score", "benchmark"):
        content = json.loads((folder / f"{name}.json").read_text())
        found[name] = " ".join(content)
        found |= {f"{name}: {key}": " ".join(content[key]) for key in ("metrics", "env")}
    return found


def pace(flags: str, side: Side) -> float:
    """Run a short training, or with --test-io its input alone; return the seconds per image."""
    words = f"--recipe reference --dtype float32 -e 2 --no-val --run-dir speed {flags}"
    side.new("speed")
    shown = side.rn50("run", *words.split())
    if "--test-io" in flags:
        return 1 / float(re.findall(r"epoch \d+: ([\d.]+) img/s", shown)[-1])
    report = json.loads((side.folder / "speed" / "report.json").read_text())
    return 1 / float(report["metrics"]["train.total_ips"][-1])


def items() -> list[Item]:
    """Return all items but those of speed."""
    found = [Item("reports", reports, ("torch",))]

    def add(name: str, needs: tuple[str, ...], flags: str) -> None:
        found.append(Item(name, partial(weights, f"{TRAIN} {flags}"), needs))

    for backend in ("torch", "tensorflow"):
        use = f"--data-root data --backend {backend}"
        for loader, form in itertools.product(LOADERS, FORMATS):
            add(f"weights {backend} {loader} {form}", (backend, *LOADERS[loader]),
                f"{RESNET} --backend {backend} --loader {loader} {FORMATS[form]}")  # fmt: skip
        add(f"weights {backend} synthetic", (backend,), f"{RESNET} {use} --loader synthetic")
        add(f"weights {backend} float16", (backend,), f"{HALF} {use}")
        for launcher, comm in LAUNCHERS.items():
            if comm == "horovod" or backend == "torch":
                needs = (backend, launcher, *["horovod"] * (comm == "horovod"))
                add(f"weights {backend} 2 workers {launcher}", needs,
                    f"{RESNET} {use} -n 2 --comm {comm} --launcher {launcher}")  # fmt: skip
    return found


def speed_items() -> list[Item]:
    """Return the items of --speed."""
    found = []
    read = "--test-io --image-shape 224 -b 32 --data-nthreads 2"
    step = "--loader synthetic --no-metrics --num-layers 18 --image-shape 64 -b 16"
    step += " --benchmark-iters 20"
    for backend in ("torch", "tensorflow"):
        for loader, form in itertools.product(LOADERS, FORMATS):
            flags = f"{read} --backend {backend} --loader {loader} {FORMATS[form]}"
            found.append(Item(f"speed loader {backend} {loader} {form}", partial(pace, flags),
                              (backend, *LOADERS[loader])))  # fmt: skip
        flags = f"--backend {backend} {step}"
        found.append(Item(f"speed step {backend}", partial(pace, flags), (backend,)))
    two = partial(pace, f"{step} -n 2 --comm ddp")
    return [*found, Item("speed step torch 2 workers", two, ("torch",))]


def installed(name: str) -> bool:
    """Return True if there is a program or package of this name."""
    with contextlib.suppress(ModuleNotFoundError):  # of the package around it
        return bool(shutil.which(name) or importlib.util.find_spec(name))
    return False


def attempt(item: Item, side: Side) -> Values:
    """Return what an item finds in a checkout, or how it failed."""
    try:
        return item.find(side)
    except Exception as error:  # also of reading what a command left
        return {"failed": f"{type(error).__name__}: {error}"[:200]}


def compare(item: Item, sides: tuple[Side, Side]) -> bool:
    """Run an item in both checkouts and print a line, and a line for each value that differs."""
    with ThreadPoolExecutor() as pool:  # the values do not depend on the time
        found = list(pool.map(partial(attempt, item), sides))
    failed = sum("failed" in values for values in found)
    a, b = found
    status = "FAILS IN BOTH" if failed == 2 else "equal" if a == b else "DIFFERS"
    shown = [str(next(iter(values.values())))[:24] for values in found]
    print(f"{item.name[:60]:60}  {shown[0]:24}  {shown[1]:24}  {status}", flush=True)
    for key in [*a, *(key for key in b if key not in a)]:
        if failed or a.get(key, "absent") != b.get(key, "absent"):
            print(f"    {key}: {a.get(key, 'absent')} | {b.get(key, 'absent')}", flush=True)
    return status == "equal"


def compare_speed(item: Item, sides: tuple[Side, Side]) -> bool:
    """Time an item in turns, and print the ratio of the speeds, B's over A's."""
    contestants = {name: partial(item.find, side) for name, side in zip("AB", sides, strict=True)}
    try:
        print_table(run_rounds(contestants, ROUNDS), [("B", "A")], item.name)
    except Failed as error:
        print(f"{item.name:60}  FAILS: {error}", flush=True)
        return False
    return True


def main() -> int:
    """Compare; return 1 if anything differs or fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkout_a", type=Path)
    parser.add_argument("checkout_b", type=Path)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of items")
    parser.add_argument("--speed", action="store_true", help="compare speeds instead")
    args = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the scratch folder is removed
    with tempfile.TemporaryDirectory(prefix="goldens-") as name:
        roots = (args.checkout_a, args.checkout_b)
        a, b = (Side(root, Path(name, side)) for root, side in zip(roots, "ab", strict=True))
        chosen = speed_items() if args.speed else items()
        chosen = [item for item in chosen if any(part in item.name for part in args.only)]
        if not chosen:
            sys.exit("error: --only: no item has such a part in its name")
        a.python(*DRAW.split(), "480" if args.speed else "36")
        shutil.copytree(a.folder / "data", b.folder / "data")  # the same files for both
        good = True
        for item in chosen:
            if lacking := [name for name in item.needs if not installed(name)]:
                print(f"{item.name:60}  skipped: no {', '.join(lacking)}", flush=True)
                continue
            good &= (compare_speed if args.speed else compare)(item, (a, b))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
