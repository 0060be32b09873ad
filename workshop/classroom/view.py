"""What a learner's process sees of the files: Python, the library, the data, and its own folder.

Nothing else is there, not even its name: no other submission, no home folder, no solutions.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from workshop import paths
from workshop.classroom import kernel

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt", "/sys/devices/system/cpu")
FILES = ("/etc/ld.so.cache", "/etc/passwd", "/etc/group", "/etc/localtime", "/etc/nsswitch.conf",
         "/etc/fonts", "/etc/alternatives", "/etc/mime.types", "/etc/ssl/openssl.cnf")  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom")
HOME = Path("/tmp/home")
SOLUTIONS = ("source", "solutions")


def of_course(root: Path) -> list[Path]:
    """The parts of a checkout that a learner's code may need, without any solution."""
    names = ("rn50lib", "data_prep", "workshop", "notebooks", "pyproject.toml")
    found = [root / name for name in names]
    exercises = root / "exercises"
    for entry in sorted(exercises.iterdir()) if exercises.is_dir() else []:
        if entry.name in SOLUTIONS:
            continue
        inside = sorted(entry.iterdir()) if entry.is_dir() else [entry]
        found += [path for path in inside if path.name not in SOLUTIONS]
    return [path for path in found if path.exists()]


def of_python() -> list[Path]:
    """Where this Python and its packages are; not the folder that it was started in."""
    places_ = [sys.prefix, sys.base_prefix, sys.exec_prefix]
    places_ += [entry for entry in sys.path if os.path.realpath(entry) != os.getcwd()]
    found = {Path(os.path.realpath(entry)) for entry in places_ if entry and os.path.isdir(entry)}
    found |= {Path(entry) for entry in places_[:3]}
    root = paths.checkout()
    checkouts = {root, *(root.parents if root else ())}
    return sorted(path for path in found if path not in checkouts and path != Path("/"))


def readable() -> list[Path]:
    root = paths.checkout()
    course = of_course(root) if root else []
    data = paths.data_home()
    return [*of_python(), *course, *([data] if data.is_dir() else [])]


def build(root: Path, shown: list[Path], writable: list[Path], size: int) -> None:
    """Build the files of a box below `root`, an empty folder, and make it the root.

    `size` is how many bytes fit into the folders that the box may write to.
    """
    kernel.mount("none", "/", None, kernel.RECURSIVE | kernel.PRIVATE)
    kernel.mount("box", str(root), "tmpfs", kernel.NO_SUID, "size=16m,mode=755")
    for name in SYSTEM:
        _system(root, Path(name))
    for path in [*map(Path, FILES), *(Path("/dev", name) for name in DEVICES)]:
        _show(root, path)
    (root / "etc").mkdir(exist_ok=True)
    # where ranks look for each other; Horovod ends with a fault where its own name has no address
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost {os.uname().nodename}\n")
    for name in ("tmp", "dev/shm"):
        (root / name).mkdir(parents=True, exist_ok=True)
        options = f"size={size},mode=1777"
        kernel.mount("box", str(root / name), "tmpfs", kernel.NO_SUID | kernel.NO_DEV, options)
    for path in _outermost(shown):
        _show(root, path)
    for path in writable:
        _show(root, path, writable=True)
    (root / "proc").mkdir(exist_ok=True)
    with contextlib.suppress(OSError):  # refused in some containers: then there is no /proc
        kernel.mount("proc", str(root / "proc"), "proc", kernel.NO_SUID | kernel.NO_DEV)
    checkout = paths.checkout()
    if checkout:  # the folder by which a checkout is known
        (root / checkout.relative_to("/") / "exercises").mkdir(parents=True, exist_ok=True)
    kernel.change_root(root)
    kernel.mount("box", "/", None, kernel.REMOUNT | kernel.READ_ONLY | kernel.NO_SUID)


def _system(root: Path, path: Path) -> None:
    """A folder of the system; /lib is often a link to /usr/lib."""
    if path.is_symlink():
        (root / path.name).symlink_to(os.readlink(path))
    else:
        _show(root, path)


def _outermost(paths: list[Path]) -> list[Path]:
    """Without what stands inside another one of them or of the system."""
    kept: list[Path] = []
    system = [Path(name) for name in SYSTEM]
    for path in sorted(set(paths)):
        if not any(path.is_relative_to(other) for other in [*kept, *system]):
            kept.append(path)
    return kept


def _show(root: Path, path: Path, writable: bool = False) -> None:
    if not path.exists():
        return
    target = root / path.relative_to("/")
    if path.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    kernel.bind(path, target, writable)
