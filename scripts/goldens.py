"""Run the same short list of trainings in two checkouts, and print whose results differ.

    python scripts/goldens.py CHECKOUT_A CHECKOUT_B
    python scripts/goldens.py A B --only "weights torch" reports         # parts of items' names

Weights depend on the processor, so no values are stored: each item runs in both checkouts, on this
machine and with this Python. The exit status is 1 if an item differs or fails. Items whose package
or program is not installed are skipped.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# 36 images make 4 steps an epoch and an incomplete batch; 20 for validation need padding.
DRAW = "-m data_prep.roadsigns data --seed 7 --records --tfrecord --train 36 --val 20"
TRAIN = "--recipe reference --image-shape 32 -b 8 -e 2 --lr 3 --warmup-epochs 1 --seed 3"
TRAIN += " --threads 1 --data-nthreads 2"
RESNET = "--num-layers 18 --dtype float32 --lr-step-epochs 1.5"
HALF = "--network tiny --dtype float16 --lr-step-epochs 1.5"  # with a loss scale, on any machine
TINY = "--recipe reference --network tiny --image-shape 32 --data-root data --threads 1"
FORMATS = {"files": "data", "recordio": "data/records", "tfrecord": "data/tfrecord"}
LAUNCHERS = {"torchrun": "ddp", "horovodrun": "horovod", "mpirun": "horovod"}


class Failed(Exception):
    """A command that failed in one checkout, with the last line that it printed."""


def items() -> dict[str, tuple[str, ...]]:
    """Return the flags of `rn50 run` by item, after the packages and programs that it needs."""
    found: dict[str, tuple[str, ...]] = {}
    for backend in ("torch", "tensorflow"):
        name, use = f"weights {backend}", f"--backend {backend}"
        for loader, form in itertools.product(("native", "dali"), FORMATS):
            if backend == "tensorflow" and (loader == "dali" or form == "recordio"):
                continue
            data = f"--loader {loader} --data-format {form} --data-root {FORMATS[form]}"
            needs = (backend, "nvidia.dali") if loader == "dali" else (backend,)
            found[f"{name} {loader} {form}"] = (*needs, f"{RESNET} {use} {data}")
        use += " --data-root data"
        found[f"{name} synthetic"] = (backend, f"{RESNET} {use} --loader synthetic")
        if backend == "torch":
            found[f"{name} float16"] = (backend, f"{HALF} {use}")
        for launcher, comm in LAUNCHERS.items():
            flags = f"{RESNET} {use} -n 2 --comm {comm} --launcher {launcher}"
            if comm == "horovod":
                found[f"{name} 2 workers {launcher}"] = (backend, launcher, "horovod", flags)
            elif backend == "torch":
                found[f"{name} 2 workers {launcher}"] = (backend, launcher, flags)
    return found


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
            sys.exit(f"error: {root} is not a checkout: Python imports {used}")

    def python(self, *words: str) -> str:
        """Run `python WORDS` and return its standard output. Raises Failed if it fails."""
        done = subprocess.run(
            [sys.executable, *words], cwd=self.folder, env=self.env, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=600,
        )  # fmt: skip
        if done.returncode:
            last = [line for line in done.stderr.splitlines() if line] or ["no message"]
            raise Failed(f"exit {done.returncode}: {last[-1]}")
        return done.stdout

    def train(self, flags: str) -> Path:
        """Train; return the new folder, out, with the checkpoints and the report."""
        shutil.rmtree(self.folder / "out", ignore_errors=True)
        files = "--model-prefix out/m --report out/report.json --run-dir out/run"
        self.python("-m", "rn50", "run", *files.split(), *flags.split())
        return self.folder / "out"

    def weights(self, flags: str) -> dict[str, object]:
        """Train; return a CRC of the last checkpoint's tensors, the network, and the metrics."""
        from safetensors.numpy import load_file

        out, crc = self.train(f"{TRAIN} {flags}"), 0
        for name, array in sorted(load_file(out / "m-0002.safetensors").items()):
            crc = zlib.crc32(f"{name} {array.dtype} {array.shape}".encode() + array.tobytes(), crc)
        metrics = json.loads((out / "report.json").read_text())["metrics"]
        kept = {k: v for k, v in metrics.items() if not k.endswith((".time", ".total_ips"))}
        network = json.loads((out / "m-symbol.json").read_text())
        return {"weights": f"{crc:08x}", **kept, "network": network}

    def reports(self) -> dict[str, object]:
        """Return the keys, in their order, of what run, score and benchmark write."""
        out = self.train(f"{TINY} -e 1")
        score = f"score out/m 1 {TINY} --report out/score.json"
        sweep = f"benchmark {TINY} -n 1 -b 4,8 -i 3 -o out/benchmark.json"
        for command in (score, sweep):
            self.python("-m", "rn50", *command.split())
        found: dict[str, object] = {}
        for name in ("report", "score", "benchmark"):
            content = json.loads((out / f"{name}.json").read_text())
            found[name] = " ".join(content)
            found |= {f"{name}: {key}": " ".join(content[key]) for key in ("metrics", "env")}
        return found

    def attempt(self, flags: str) -> dict[str, object]:
        """Return the results of an item, the reports without flags, or how it failed."""
        try:
            return self.weights(flags) if flags else self.reports()
        except Exception as error:  # also of reading what a command left
            return {"failed": f"{type(error).__name__}: {error}"[:200]}


def compare(name: str, flags: str, sides: tuple[Side, Side]) -> bool:
    """Run an item in both checkouts; print a line, and one for each value that differs."""
    with ThreadPoolExecutor() as pool:
        a, b = pool.map(lambda side: side.attempt(flags), sides)
    failed = ("failed" in a) + ("failed" in b)
    status = "FAILS IN BOTH" if failed == 2 else "equal" if a == b else "DIFFERS"
    print(f"{name:50}  {str(next(iter(a.values())))[:24]:24}  {status}", flush=True)
    for key in a | b:
        if failed or a.get(key, "absent") != b.get(key, "absent"):
            print(f"    {key}: {a.get(key, 'absent')} | {b.get(key, 'absent')}", flush=True)
    return status == "equal"


def installed(name: str) -> bool:
    """Return True if there is a program or package of this name."""
    try:
        return bool(shutil.which(name) or importlib.util.find_spec(name))
    except ModuleNotFoundError:  # of the package around it
        return False


def main() -> int:
    """Compare; return 1 if anything differs or fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("checkout_a", type=Path)
    parser.add_argument("checkout_b", type=Path)
    parser.add_argument("--only", nargs="+", default=[""], help="parts of the names of items")
    args = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the scratch folder is removed
    found = {"reports": ("torch", "")} | items()
    chosen = {k: v for k, v in found.items() if any(part in k for part in args.only)}
    if not chosen:
        sys.exit("error: --only: no item has such a part in its name")
    with tempfile.TemporaryDirectory(prefix="goldens-") as name:
        a, b = Side(args.checkout_a, Path(name, "a")), Side(args.checkout_b, Path(name, "b"))
        a.python(*DRAW.split())
        shutil.copytree(a.folder / "data", b.folder / "data")  # the same files for both
        good = True
        for item, (*needs, flags) in chosen.items():
            if lacking := [need for need in needs if not installed(need)]:
                print(f"{item:50}  skipped: no {', '.join(lacking)}", flush=True)
            else:
                good &= compare(item, flags, (a, b))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
