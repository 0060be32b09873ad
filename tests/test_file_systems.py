"""File systems without locks, hard links, shared mappings or fsync of folders; a long TMPDIR.

A library that is loaded before the C library's refuses these calls below one folder, as network
file systems and FUSE do.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import clean_environment
from tests.data_prep.test_imagenet import contents, expected, make_extracted
from tests.support import TINY, make_photos, strict_json

pytestmark = [pytest.mark.slow, pytest.mark.needs("compiler")]
SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int below(const char *path) {
    const char *folder = getenv("REFUSING");
    return folder && !strncmp(path, folder, strlen(folder));
}
static int inside(int fd) {
    char name[64], path[4096];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(name, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return below(path);
}
static int refuse(int error) { errno = error; return -1; }

int flock(int fd, int how) {
    if (inside(fd)) return refuse(ENOLCK);
    return ((int (*)(int, int))dlsym(RTLD_NEXT, "flock"))(fd, how);
}
int fsync(int fd) {
    struct stat found;
    if (inside(fd) && !fstat(fd, &found) && S_ISDIR(found.st_mode)) return refuse(EINVAL);
    return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd);
}
int link(const char *from, const char *to) {
    if (below(to)) return refuse(atoi(getenv("REFUSED")));
    return ((int (*)(const char *, const char *))dlsym(RTLD_NEXT, "link"))(from, to);
}
int linkat(int f, const char *from, int t, const char *to, int flags) {
    if (below(to)) return refuse(atoi(getenv("REFUSED")));
    return ((int (*)(int, const char *, int, const char *, int))dlsym(RTLD_NEXT, "linkat"))
        (f, from, t, to, flags);
}
#define MAP(name) \
    void *name(void *at, size_t size, int rights, int flags, int fd, off_t offset) { \
        if (fd >= 0 && (flags & MAP_TYPE) != MAP_PRIVATE + (getenv("PRIVATE") ? 99 : 0) \
            && inside(fd)) { errno = ENODEV; return MAP_FAILED; } \
        return ((void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, #name)) \
            (at, size, rights, flags, fd, offset); \
    }
MAP(mmap)
MAP(mmap64)
"""
Refusing = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def refusing(tmp_path: Path) -> Refusing:
    """Run `python -m ARGS` in a folder on such a file system."""
    folder = tmp_path / "mounted"
    folder.mkdir()
    (tmp_path / "shim.c").write_text(SHIM)
    library = tmp_path / "shim.so"
    compiler = ["g++", "-x", "c", "-shared", "-fPIC", "-o", str(library)]
    subprocess.run([*compiler, str(tmp_path / "shim.c"), "-ldl"], check=True)

    def run(*args: object, **env: str) -> subprocess.CompletedProcess[str]:
        env = {"LD_PRELOAD": str(library), "REFUSING": str(folder), "REFUSED": "5"} | env
        return subprocess.run(
            [sys.executable, "-m", *map(str, args)], cwd=folder, text=True, capture_output=True,
            env=clean_environment(**env), stdin=subprocess.DEVNULL, timeout=240,
        )  # fmt: skip

    return run


@pytest.mark.needs("torch")
def test_a_run_without_locks_shared_maps_and_fsync(refusing: Refusing, tmp_path: Path) -> None:
    """The data, the run's folder and its checkpoints are all there."""
    data = make_photos(tmp_path / "mounted" / "set")
    flags = ("--data-root", data.root, "--data-format", "recordio", *TINY, "--run-dir", "run")
    done = refusing("rn50", "run", *flags, "-e", "1", "--model-prefix", "m")
    assert done.returncode == 0, done.stderr
    assert "this file system has no locks (No locks available)" in done.stderr
    assert "Traceback" not in done.stderr
    done = refusing("rn50", "run", *flags, "-e", "2", "--model-prefix", "m", "--resume")
    assert done.returncode == 0, done.stderr
    assert len(strict_json(tmp_path / "mounted/run/report.json")["metrics"]["val.top1"]) == 2


def test_records_that_cannot_be_mapped_are_named(refusing: Refusing, tmp_path: Path) -> None:
    """`verify` maps them, and the first opening, which reads the labels."""
    file = make_photos(tmp_path / "mounted" / "set").records / "train.rec"
    done = refusing("data_prep.verify", file, PRIVATE="1")
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert f"{file}: this file system cannot map files (No such device)" in done.stdout


@pytest.mark.parametrize("error", ["EIO", "ENOSYS", "EPERM"])
def test_images_are_copied_where_they_cannot_be_linked(
    error: str, refusing: Refusing, tmp_path: Path
) -> None:
    source = make_extracted(tmp_path / "source", flat_val=True)
    number = str(getattr(errno, error))
    done = refusing("data_prep.imagenet", source, "out", REFUSED=number)
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "mounted" / "out") == expected()


@pytest.mark.needs("torch")
def test_a_long_temporary_folder(tmp_path: Path) -> None:
    """The paths of multiprocessing's sockets would be longer than the kernel's 107 bytes."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    tiny = [*TINY, "--data-nthreads", "2"]
    done = subprocess.run(
        [sys.executable, "-m", "rn50", "run", "--loader", "native", "--data-root",
         str(make_photos(tmp_path / "set").root), *tiny, "-e", "1", "--run-dir", "run"],
        cwd=tmp_path, env=clean_environment(TMPDIR=str(folder)), text=True, capture_output=True,
    )  # fmt: skip
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert f"error: TMPDIR {folder}: the loader's workers cannot connect there" in done.stderr
    assert not [name for name in os.listdir(folder) if name.startswith((".workers", "pymp"))]
