"""Sets up `.venv`: a virtual environment, `pip install -r`, and Horovod's wheel (`make setup`).

    python3 scripts/setup.py [--venv DIR] [--dali NAME] [--with NAMES] [--retry] [--plan]

Standard library only. pip runs again only if the list of packages has changed; while it
downloads for the first time, the built-in images are drawn. In an NVIDIA container, or over any
Python that has a CUDA framework, the environment adds what is missing and keeps the frameworks at
their versions.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 10):  # noqa: UP036 - before anything that an older Python cannot read
    sys.exit("error: Python 3.11 or 3.12 is needed: README.md says how to get one without root")

import argparse
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import shlex
import shutil
import site
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# NumPy 2.4 needs 3.11; nvidia-dali-cuda110 has no wheel for 3.13
PINS_RUN_ON = ("python3.11", "python3.12")
DALI_WHEELS = {  # the newest wheel of each name that contains DALI itself
    "cuda110": "nvidia-dali-cuda110==1.34.0",
    "cuda120": "nvidia-dali-cuda120==2.4.0",
    "cuda130": "nvidia-dali-cuda130==2.4.0",
}
ROOM = 6e9  # the packages for a CPU, and the largest wheel; those for CUDA take more
# Builds of one package share a folder, so the ones that were not chosen are removed.
RIVALS = ["tensorflow", "tensorflow-cpu", *(f"nvidia-dali-{name}" for name in DALI_WHEELS)]
# The DALI for CUDA 12 brings these; the one for CUDA 13 has its own, with files of the same names.
DECODERS = re.compile(r"nvidia-(libnvcomp|nvimgcodec|nvjpeg|nvjpeg2k|nvtiff)-cu12\b")
KEPT = ("torch", "tensorflow", "tensorflow-cpu", "horovod", "numpy")
COMPILER = ("g++", "make", "mpirun")  # what Horovod's build needs
COMPILER_PACKAGES = ("g++", "make", "openmpi-bin", "libopenmpi-dev")  # of Debian and Ubuntu


class SetupError(Exception):
    """The set-up cannot go on; the message says why and what to do."""


def main() -> int:
    """Run the program; return the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add, env = parser.add_argument, os.environ.get
    add("--venv", default=str(ROOT / ".venv"), help="where (.venv)")
    add("--cuda", default=env("CUDA", ""),
        help="12, 13 or none: the packages' CUDA (by driver; without one, as before)")  # fmt: skip
    add("--dali", default=env("DALI", ""),
        help="cuda110, cuda120, cuda130, none, or a requirement (by driver)")  # fmt: skip
    add("--with", dest="add", default=env("WITH", ""), metavar="NAMES",
        help="in a container, frameworks to add: 'torch tensorflow dali'")  # fmt: skip
    add("--retry", action="store_true", help="build Horovod again if it failed")
    add("--plan", action="store_true", help="print the commands; run none")
    args = parser.parse_args()
    venv = Path(os.path.abspath(args.venv))
    start_over(venv)
    if venv.exists() and not os.access(venv, os.W_OK):
        print(f"{venv} is read-only and is used as it is.")
        return 0
    kept = kept_packages() if has_cuda_framework() else None
    if kept is None:
        use_python_of_the_pins(venv)
    try:
        own = Setup(venv, args.plan)
        own.all(kept, own.choose_cuda(args.cuda), args.dali, args.add.split(), args.retry)
    except SetupError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except subprocess.CalledProcessError as error:
        print(f"error: this failed: {shlex.join(error.cmd)}\n`make setup` continues from here",
              file=sys.stderr)  # fmt: skip
        return 1
    return 0


class Setup:
    """The steps of one set-up. With `plan`, commands are printed instead of run."""

    def __init__(self, venv: Path, plan: bool) -> None:
        self.venv, self.plan = venv, plan
        self.state = venv / "rn50-setup"  # the list of packages, and hashes of what is done
        self.pip = (str(venv / "bin" / "python"), "-m", "pip")

    def choose_cuda(self, asked: str) -> int | None:
        """Return the major CUDA version of the packages, or None for those of a CPU.

        Hosts that share the environment may differ: where there is no driver, the choice of a host
        with one stays. Raises SetupError.
        """
        if asked and "/" not in asked:  # a module of a cluster may have set a path
            if not re.fullmatch(r"\d+|none", asked):
                raise SetupError(f"CUDA={asked}: use 12, 13 or none")
            return None if asked == "none" else int(asked)
        cuda, last = driver_cuda(), self.state / "cuda"
        if cuda is None and last.exists():
            cuda = int(last.read_text())
            print(f"note: no NVIDIA driver here: the packages stay those for CUDA {cuda};"
                  " `make setup CUDA=none` takes those for a CPU")  # fmt: skip
        return cuda

    def all(
        self, kept: list[str] | None, cuda: int | None, dali: str, add: list[str], retry: bool
    ) -> None:
        """Make the environment, install the packages, and build Horovod; skip what is done."""
        if kept is None:
            lines, keras, notes = pinned(cuda, choose_dali(cuda, dali))
            optional: list[str] = []
        else:
            lines, optional, keras, notes = missing(kept, cuda, dali, add)
        if kept is None and not self.plan:
            self.room()
        self.create(kept is not None)
        text = "\n".join([*lines, *optional, *keras, *(kept or [])])
        inputs = (text, (ROOT / "pyproject.toml").read_text(), platform.python_version(), str(ROOT))
        drawing = None
        if self.is_new("packages", *inputs):
            print("\n".join([f"Installing into {self.venv}; this takes minutes.", *notes]))
            drawing = self.draw(lines) if kept is None else None
            try:
                self.install(lines, optional, keras, kept)
            except BaseException:
                if drawing:
                    drawing.terminate()
                raise
            self.done("packages", *inputs)
            if not self.plan:
                (self.state / "cuda").unlink(missing_ok=True)
                if cuda:
                    (self.state / "cuda").write_text(str(cuda))
        if sys.platform == "linux" and not any(line.startswith("horovod==") for line in kept or []):
            self.horovod(text, retry)
        if drawing and drawing.wait():
            print("note: the road signs are not complete; the first run draws the rest.")

    def run(self, *command: str) -> None:
        """Run a command with its output on the terminal. Raises CalledProcessError."""
        if self.plan:
            print("$", shlex.join(command))
            return
        sys.stdout.flush()
        subprocess.run(command, check=True, env={**os.environ, "PIP_NO_INPUT": "1"})

    def room(self) -> None:
        """Raise SetupError if a first set-up does not fit on the disk: pip would fail later."""
        place = next(folder for folder in (self.venv, *self.venv.parents) if folder.exists())
        free = shutil.disk_usage(place).free
        there = any(self.venv.glob("lib/python3*/site-packages/torch"))  # conda's, for instance
        if free < ROOM and not there:
            raise SetupError(
                f"{free / 1e9:.1f} GB are free at {place}; the packages need more than"
                f" {ROOM / 1e9:.0f}: make room, or clone the project to a larger disk"
            )

    def create(self, over_base: bool) -> None:
        """Make the virtual environment, unless one of this Python and kind exists already."""
        conda = (self.venv / "conda-meta").is_dir() and Path(sys.prefix) == self.venv.resolve()
        config = self.venv / "pyvenv.cfg"
        text = config.read_text() if config.exists() else ""
        same = f"version = {platform.python_version()}\n" in text
        system = over_base and sys.prefix == sys.base_prefix  # else link_to_base does it
        same = same and f"include-system-site-packages = {str(system).lower()}" in text
        if conda or (same and (self.venv / "bin" / "python").exists()):
            return
        flags = ["--without-pip"] if over_base and importlib.util.find_spec("pip") else []
        if system:
            flags.append("--system-site-packages")
        if not flags and importlib.util.find_spec("ensurepip") is None:
            minor = f"{sys.version_info[0]}.{sys.version_info[1]}"
            raise SetupError(f"venv is missing: `sudo apt-get install python{minor}-venv`")
        self.run(sys.executable, "-m", "venv", "--clear", *flags, str(self.venv))
        if over_base and not self.plan:
            link_to_base(self.venv)

    def draw(self, lines: list[str]) -> subprocess.Popen[bytes] | None:
        """Begin to draw the built-in data set, at low priority, while pip downloads the packages.

        Returns None if there is nothing to draw (an image is built from a part of the project).
        """
        root = Path(os.environ.get("RN50_DATA") or ROOT / "data") / "roadsigns"
        if self.plan or root.exists() or not (ROOT / "data_prep" / "roadsigns.py").exists():
            return None
        needs = [line for line in lines if re.match("(numpy|pillow|tqdm)==", line)]
        self.run(*self.pip, "install", "-q", *needs)
        return subprocess.Popen(
            [self.pip[0], "-m", "data_prep.roadsigns", str(root), "--records"], cwd=ROOT,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=lambda: os.nice(19),
        )  # fmt: skip

    def install(
        self, lines: list[str], optional: list[str], keras: list[str], kept: list[str] | None
    ) -> None:
        """Install the packages, tf-keras without its dependencies, and the project itself.

        An optional package that does not fit what is kept is left out, with a note.
        """
        if self.plan:
            print("\n".join([*lines, *(f"kept: {line}" for line in kept or [])]))
        else:
            self.state.mkdir(exist_ok=True)
            (self.state / "requirements.txt").write_text("\n".join(lines) + "\n")
            (self.state / "constraints.txt").write_text("\n".join(kept or []) + "\n")
        names = {re.split(r"[^A-Za-z0-9._-]", line)[0] for line in lines}
        pip, editable = (*self.pip, "install"), ("--no-build-isolation", "-e", str(ROOT))
        if kept is None:
            gone = [name for name in RIVALS if name not in names]
            self.run(*self.pip, "uninstall", "-q", "-y", *gone)
        else:
            pip = (*pip, "--no-build-isolation", "-c", str(self.state / "constraints.txt"))
            self.run(*pip, "setuptools>=68", "wheel")  # which build the project itself
        self.run(*pip, "-r", str(self.state / "requirements.txt"))
        for line in optional:
            try:
                self.run(*pip, line)
            except subprocess.CalledProcessError:
                print(f"note: {line} was not installed; pip's message is above.")
                if line.startswith("tensorflow"):
                    keras = []  # it imports TensorFlow
        if keras:
            self.run(*self.pip, "install", "--no-deps", *keras)
        self.run(*self.pip, "install", "--no-deps", *editable)

    def horovod(self, packages: str, retry: bool) -> None:
        """Install Horovod's wheel; a failure is reported and not repeated without `retry`."""
        script = ROOT / "scripts" / "horovod_wheel.py"
        self.compiler()
        tools = str([*filter(shutil.which, COMPILER)])
        inputs = (packages, platform.python_version(), script.read_text(), tools)
        if not self.is_new("horovod", *inputs) and not retry:
            return
        try:
            self.run(self.pip[0], str(script), "--install")
        except subprocess.CalledProcessError:
            print("note: Horovod was not built. Everything else works, and DDP runs the lessons on"
                  " several processes. To build it: `sudo apt-get install"
                  f" {' '.join(COMPILER_PACKAGES)}`, then `make horovod`.")  # fmt: skip
        self.done("horovod", *inputs)

    def compiler(self) -> None:
        """Install what Horovod's build needs, if it is missing and apt-get may do so (as root)."""
        if all(map(shutil.which, COMPILER)) or os.geteuid() or not shutil.which("apt-get"):
            return
        flags = ("-q", "-y", "--no-install-recommends", *COMPILER_PACKAGES)
        try:
            self.run("apt-get", "-q", "update")
            self.run("env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "install", *flags)
        except subprocess.CalledProcessError:
            print("note: apt-get failed; Horovod is built with what is here.")

    def is_new(self, step: str, *inputs: str) -> bool:
        """Return True if the step has not been done with these inputs."""
        file = self.state / step
        return not file.exists() or file.read_text() != digest(inputs)

    def done(self, step: str, *inputs: str) -> None:
        """Note that the step has been done."""
        if not self.plan:
            self.state.mkdir(exist_ok=True)
            (self.state / step).write_text(digest(inputs))


def digest(inputs: tuple[str, ...]) -> str:
    return hashlib.sha256("\0".join(inputs).encode()).hexdigest()


def driver_cuda() -> int | None:
    """Return the major CUDA version of the NVIDIA driver, or None if no driver answers."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None
    try:
        answer = subprocess.run([smi], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"CUDA(?: \w+)? Version:\s*(\d+)\.", answer.stdout)
    return int(found[1]) if answer.returncode == 0 and found else None


def choose_dali(cuda: int | None, asked: str) -> str | None:
    """Return the DALI requirement for a driver, or None without a wheel.

    `asked` is a key of DALI_WHEELS, a requirement, `none`, or empty for the choice by driver.
    Raises SetupError for anything else.
    """
    if asked in DALI_WHEELS:
        return DALI_WHEELS[asked]
    if asked and asked != "none" and not asked.startswith("nvidia-dali-"):
        names = ", ".join(DALI_WHEELS)
        raise SetupError(f"DALI={asked}: use one of {names}, none, or nvidia-dali-NAME==VERSION")
    if asked:
        return None if asked == "none" else asked
    where = (platform.system(), platform.machine())
    if where == ("Linux", "x86_64"):
        return DALI_WHEELS["cuda120" if (cuda or 0) >= 12 else "cuda110"]  # cuda130: no V100s
    return DALI_WHEELS["cuda130"] if where == ("Linux", "aarch64") and (cuda or 0) > 12 else None


def pinned(cuda: int | None, dali: str | None) -> tuple[list[str], list[str], list[str]]:
    """Return the exact packages of an ordinary machine, those without dependencies, and notes.

    A driver for CUDA 12 or later on Linux x86_64 gets requirements-gpu.txt.
    """
    gpu = (cuda or 0) >= 12 and (platform.system(), platform.machine()) == ("Linux", "x86_64")
    text = (ROOT / f"requirements-{'gpu' if gpu else 'cpu'}.txt").read_text()
    notes = [f"DALI: {dali or 'none'}"]
    if cuda and not gpu:
        notes.append("The CUDA builds need Linux x86_64 and a driver for CUDA 12 or later;"
                     " the CPU builds are installed.")  # fmt: skip
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith(("#", "nvidia-dali-"))]
    if "nvidia-dali-cuda120" not in (dali or ""):
        lines = [line for line in lines if not DECODERS.match(line)]
    keras = re.findall(r"^#\s+--no-deps (\S+)", text, re.M)
    return [*lines, *([dali] if dali else [])], keras, notes


# --- over a Python that has its own frameworks ----------------------------------------------------


def has_cuda_framework() -> bool:
    """Return True in an NVIDIA container, or if this Python has PyTorch or TensorFlow for CUDA."""
    checks = {
        "torch": ("version.py", r"^cuda[^=]*= ['\"][\d.]+"),
        "tensorflow": ("python/platform/build_info.py", r"is_cuda_build'?\W+True"),
    }
    for package, (file, pattern) in checks.items():
        spec = importlib.util.find_spec(package)
        for folder in (spec.submodule_search_locations or []) if spec else []:
            path = Path(folder, file)
            if path.exists() and re.search(pattern, path.read_text(errors="replace"), re.M):
                return True
    return bool(os.environ.get("NVIDIA_BUILD_ID"))


def kept_packages() -> list[str]:
    """Return NAME==VERSION of the frameworks of this Python and of everything they depend on."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions():
        if distribution.metadata["Name"]:  # the first one on sys.path is the one imported
            found.setdefault(normal(distribution.metadata["Name"]), distribution)
    todo = [name for name in found if name in KEPT or name.startswith("nvidia-dali")]
    kept: dict[str, str] = {}
    while todo:
        name = todo.pop()
        if name in found and name not in kept:
            kept[name] = found[name].version
            needs = [line for line in found[name].requires or [] if "extra ==" not in line]
            todo += [normal(re.split(r"[^A-Za-z0-9._-]", line)[0]) for line in needs]
    return [f"{name}=={version}" for name, version in sorted(kept.items())]


def normal(name: str) -> str:
    """Return the name of a package as indexes compare it: `ml_dtypes` -> `ml-dtypes`."""
    return re.sub(r"[-_.]+", "-", name).lower()


def missing(
    kept: list[str], cuda: int | None, dali: str, add: list[str]
) -> tuple[list[str], list[str], list[str], list[str]]:
    """Return the requirements of an environment over `kept`, and its optional ones.

    Then those without dependencies, and notes. Next to PyTorch, TensorFlow (for the CPU) and DALI
    are optional; `add` names further frameworks to install although the base Python lacks them.
    """
    versions = dict(line.split("==") for line in kept)
    here = {name.removesuffix("-cpu") for name in KEPT if name in versions}
    here |= {"dali" for name in versions if name.startswith("nvidia-dali")}
    new = ({"tensorflow", "dali"} if "torch" in here else set()) | set(add)
    new -= here
    notes = ["Kept from the base Python: " + (", ".join(kept) or "nothing")]
    for name in sorted({"torch", "tensorflow", "dali"} - here - new):
        notes.append(f"{name} is not here and is left out; `make setup WITH={name}` adds it.")
    extras = ["data", "notebooks", "test", "horovod", *({"torch"} & (here | new))]
    lines = [f'-e "{ROOT}[{",".join(extras)}]"']  # the path may contain a blank
    if "torch" in new and cuda == 12:
        lines.append("torch<2.11")  # later wheels are built for CUDA 13
    wheel = choose_dali(cuda, dali) if "dali" in new or ("dali" not in here and dali) else None
    optional, keras = [wheel] if wheel else [], []
    version = versions.get("tensorflow") or versions.get("tensorflow-cpu", "0.0")
    major, minor = version.split(".")[:2]
    if (int(major), int(minor)) >= (2, 16):  # before that, its own Keras is Keras 2
        keras = [f"tf-keras~={major}.{minor}.0"]
    if "tensorflow" in new:
        text = (ROOT / "requirements-cpu.txt").read_text()
        optional += re.findall(r"^tensorflow.*==.*", text, re.M)
        keras = re.findall(r"^#\s+--no-deps (\S+)", text, re.M)
    return lines, optional, keras, notes


def link_to_base(venv: Path) -> None:
    """Let the environment see a base Python that is a virtual environment, and its JupyterLab."""
    if sys.prefix != sys.base_prefix:
        (folder,) = venv.glob("lib/python3*/site-packages")
        (folder / "rn50_base_sites.pth").write_text("\n".join(site.getsitepackages()) + "\n")
    for prefix in (Path(sys.prefix), Path("/usr/local")):
        lab, link = prefix / "share/jupyter/lab", venv / "share/jupyter/lab"
        if lab.is_dir() and not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(lab)


# --- which Python ---------------------------------------------------------------------------------


def start_over(venv: Path) -> None:
    """Start again with the base Python if the environment's own Python runs this program."""
    base = getattr(sys, "_base_executable", sys.executable)
    if Path(sys.prefix) == venv.resolve() and base != sys.executable:
        os.execv(base, [base, *sys.argv])


def use_python_of_the_pins(venv: Path) -> None:
    """Start again with a Python for which the pinned versions have wheels, unless this is one.

    The environment's own comes first, so that PYTHON is passed only once.
    """
    if f"python3.{sys.version_info[1]}" in PINS_RUN_ON:
        return
    for folder in (str(venv / "bin"), None):  # None: those on PATH
        for python in filter(None, (shutil.which(name, path=folder) for name in PINS_RUN_ON)):
            os.execv(python, [python, *sys.argv])
    sys.exit(
        f"error: the pinned versions need Python 3.11 or 3.12, and this is"
        f" {platform.python_version()}: name one with `make lab PYTHON=/path/to/python3.12`. One"
        " way to install it without root: `curl -LsSf https://astral.sh/uv/install.sh | sh`, then,"
        " in a new shell, `uv python install 3.12` and `make lab PYTHON=$(uv python find 3.12)`"
    )


if __name__ == "__main__":
    sys.exit(main())
