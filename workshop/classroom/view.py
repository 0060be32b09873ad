"""What a learner's process sees of the files: Python, the library, the data, and its own folder.

This is a list of what it may see. Nothing else is there, not even its name: no other submission, no
home folder, no solutions. Where a checkout or submissions stand inside of something on the list,
they are covered.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from workshop import paths
from workshop.classroom import kernel

SYSTEM = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr/bin", "/usr/sbin", "/usr/lib",
          "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/include", "/usr/share/fonts",
          "/usr/share/zoneinfo", "/usr/share/openmpi", "/usr/share/pmix", "/usr/local/cuda",
          "/usr/local/mpi", "/opt/hpcx", "/sys/devices/system/cpu")  # fmt: skip
FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/nsswitch.conf",
         "/etc/fonts", "/etc/alternatives", "/etc/mime.types", "/etc/ssl/openssl.cnf")  # fmt: skip
DEVICES = ("null", "zero", "full", "random", "urandom")
HOME = Path("/tmp/home")
SOLUTIONS = ("source", "solutions")
OF_PYTHON = ("bin", "lib", "lib32", "lib64", "include", "etc", "pyvenv.cfg")  # below its prefix


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


def checkouts() -> list[Path]:
    """The checkout that is graded with, and the one whose code this is; mostly the same."""
    around = [paths.checkout(), Path(__file__).resolve().parents[2]]
    return list(dict.fromkeys(each for each in around if each and (each / "exercises").is_dir()))


def solutions() -> list[Path]:
    """Where solutions stand."""
    places = [each / "exercises" for each in checkouts()]
    places += [entry for place in places for entry in place.glob("*/")]
    return [place / name for place in places for name in SOLUTIONS]


def of_python() -> list[Path]:
    """Where this Python, its packages and the libraries that they have loaded are; not the folder
    that it was started in."""
    prefixes = {Path(each) for each in (sys.prefix, sys.base_prefix, sys.exec_prefix)}
    found = {Path(os.path.realpath(prefix), part) for prefix in prefixes for part in OF_PYTHON}
    found |= {prefix / part for prefix in prefixes for part in OF_PYTHON}
    found |= {Path(os.path.realpath(each)) for each in sys.path if os.path.isdir(each)}
    found -= {Path(os.path.realpath(os.getcwd()))}
    with contextlib.suppress(OSError):
        maps = Path("/proc/self/maps").read_text(errors="replace").split()
        found |= {Path(each).parent for each in maps if each[:1] == "/" and ".so" in each}
    whole = {path for each in checkouts() for path in (each, *each.parents)} | prefixes
    return sorted(path for path in found if path not in whole)


def readable() -> list[Path]:
    course = [path for root in checkouts() for path in of_course(root)]
    data = paths.data_home()
    return [*of_python(), *course, *([data] if data.is_dir() else [])]


def build(root: Path, shown: list[Path], hidden: list[Path], size: int, user: int) -> None:
    """Build the files of a box below `root`, an empty folder, and make it the root.

    `shown` is seen besides the system, without what of it is `hidden`; `size` is how many bytes fit
    into the folders that the box may write to; `user` is the only account that it knows.
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
    (root / "etc/passwd").write_text(f"learner:x:{user}:{user}::{HOME}:/bin/sh\n")
    (root / "etc/group").write_text(f"learner:x:{user}:\n")
    for name in ("tmp", "dev/shm"):
        (root / name).mkdir(parents=True, exist_ok=True)
        options = f"size={size},mode=1777"
        kernel.mount("box", str(root / name), "tmpfs", kernel.NO_SUID | kernel.NO_DEV, options)
    inside = [path for path in shown if any(path.is_relative_to(each) for each in checkouts())]
    for path in _outermost(list(set(shown) - set(inside))):
        _show(root, path)
    covers = [_cover(root, each) for each in checkouts()]
    for path in _outermost(inside):
        _show(root, path)
    covers += [_cover(root, path) for each in hidden for path in names(each, shown)]
    (root / "proc").mkdir(exist_ok=True)
    with contextlib.suppress(OSError):  # refused in some containers: then there is no /proc
        kernel.mount("proc", str(root / "proc"), "proc", kernel.NO_SUID | kernel.NO_DEV)
    for each in checkouts():  # the folder by which a checkout is known
        (root / each.relative_to("/") / "exercises").mkdir(parents=True, exist_ok=True)
    for cover in filter(None, covers):
        kernel.mount("box", str(cover), None, kernel.REMOUNT | kernel.READ_ONLY | kernel.NO_SUID)
    kernel.change_root(root)
    kernel.mount("box", "/", None, kernel.REMOUNT | kernel.READ_ONLY | kernel.NO_SUID)


def _system(root: Path, path: Path) -> None:
    """A folder of the system; /lib is often a link to /usr/lib."""
    if path.is_symlink():
        (root / path.name).symlink_to(os.readlink(path))
    else:
        _show(root, path)


def _outermost(paths: list[Path]) -> list[Path]:
    """Without what stands inside another one of them."""
    kept: list[Path] = []
    for path in sorted(set(paths)):
        if not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return kept


def names(path: Path, shown: list[Path]) -> set[Path]:
    """Every path by which a file can be reached: its own, and through what is shown."""
    real = path.resolve()
    inside = [each for each in shown if real.is_relative_to(each.resolve())]
    return {real, *(each / real.relative_to(each.resolve()) for each in inside)}


def _cover(root: Path, path: Path) -> Path | None:
    """Put nothing in the place of a folder or file that is seen so far; what covers a folder."""
    target = root / path.relative_to("/")
    if target.is_dir():
        kernel.mount("box", str(target), "tmpfs", kernel.NO_SUID, "size=1m,mode=755")
        return target
    if target.exists():
        kernel.bind(Path(os.devnull), target)
    return None


def _show(root: Path, path: Path) -> None:
    if not path.exists():
        return
    target = root / path.relative_to("/")
    if path.is_dir():
        target.mkdir(parents=True, exist_ok=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.touch()
    kernel.bind(path, target)
