"""The Dockerfile, as far as it goes without an engine: its RUN lines, in a Debian of debootstrap's.

That is its plain base: `debian:bookworm-slim` is Debian's minimal system.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

PIP = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt", "/etc/resolv.conf")


def instructions(dockerfile: Path) -> list[tuple[str, str]]:
    """Return (WORD, the rest) of each instruction, with continued lines joined."""
    text = re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.M).replace("\\\n", "")
    lines = (line.partition(" ") for line in text.splitlines() if line.strip())
    return [(word, rest.strip()) for word, _, rest in lines]


def copy(repository: Path, words: list[str], folder: Path) -> None:
    """Carry out COPY with these words: files into a folder, or the whole context."""
    names = words[:-1]
    if names == ["."]:
        listed = ["git", "ls-files", "-co", "--exclude-standard"]
        found = subprocess.run(listed, cwd=repository, capture_output=True, text=True)
        names = [name for name in found.stdout.splitlines() if (repository / name).is_file()]
    for name in names:
        to = folder / (name if words[0] == "." else f"{words[-1]}/{Path(name).name}")
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(repository / name, to)


@pytest.mark.slow
def test_an_edit_does_not_reinstall_the_environment(repository: Path, tmp_path: Path) -> None:
    """`make setup` runs before the sources are copied, and finds all that it needs."""
    steps = instructions(repository / "Dockerfile")
    setup = next(i for i, (word, rest) in enumerate(steps) if "make setup" in rest)
    assert ("COPY", ". .") in steps[setup:]
    for word, rest in steps[:setup]:
        if word == "COPY":
            copy(repository, rest.split(), tmp_path)
    assert not (tmp_path / "docs").exists()
    plan = [
        sys.executable,
        tmp_path / "scripts" / "setup.py",
        "--plan",
        "--venv",
        tmp_path / "venv",
    ]
    subprocess.run(plan, check=True, stdout=subprocess.DEVNULL)
    project = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"]
    project += ["--target", tmp_path / "site", "-e", tmp_path]
    subprocess.run(project, check=True)
    copy(repository, [".", "."], tmp_path)  # the editable install sees what is copied later
    code = f"import site; site.addsitedir({str(tmp_path / 'site')!r}); import importlib.util as i; "
    code += "print(i.find_spec('rn50.cli').origin, i.find_spec('data_prep.im2rec').origin)"
    found = subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True,
                           capture_output=True, text=True)  # fmt: skip
    wanted = (tmp_path / "rn50" / "cli.py", tmp_path / "data_prep" / "im2rec.py")
    assert found.stdout.split() == [*map(str, wanted)]


class Chroot:
    """A system in a folder, in which the instructions of a Dockerfile are executed."""

    def __init__(self, root: Path, repository: Path) -> None:
        self.root, self.repository = root, repository
        self.folder = "/"
        self.env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

    def run(self, command: str, log: Path, user: str = "0:0") -> None:
        """Run a RUN line with this machine's package index; `log` gets the output."""
        for path in filter(os.path.exists, PIP):  # a package just installed may have its own
            to = self.root / path.lstrip("/")
            to.parent.mkdir(parents=True, exist_ok=True)
            to.unlink(missing_ok=True)
            shutil.copy(path, to)
        pip = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
        env = [f"{name}={value}" for name, value in (pip | self.env).items()]
        inside = ["chroot", f"--userspec={user}", str(self.root), "env", "-i", "HOME=/tmp", *env]
        inside += ["sh", "-c", f"cd {shlex.quote(self.folder)} && {command}"]
        mounts = f"mount --rbind /dev {self.root}/dev && mount -t proc proc {self.root}/proc && "
        for folder in filter(os.path.isdir, os.environ.get("PIP_FIND_LINKS", "").split()):
            mounts += (
                f"mkdir -p {self.root}{folder} && mount --bind {folder} {self.root}{folder} && "
            )
        with log.open("wb") as file:
            ended = subprocess.run(
                ["unshare", "--mount", "sh", "-c", mounts + shlex.join(inside)],
                stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, timeout=3000,
            )  # fmt: skip
        assert ended.returncode == 0, f"{command}\n" + log.read_text()[-3000:]

    def follow(self, word: str, rest: str, log: Path) -> None:
        if word == "WORKDIR":
            self.folder = rest
            (self.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
        elif word == "ENV":
            name, _, value = rest.partition("=")
            self.env[name] = value.replace("${PATH}", self.env["PATH"])
        elif word == "COPY":
            copy(self.repository, rest.split(), self.root / self.folder.lstrip("/"))
        elif word == "RUN":
            self.run(rest, log)
        else:
            assert word in ("ARG", "FROM", "EXPOSE", "CMD"), word


@pytest.mark.acceptance
@pytest.mark.needs("debootstrap")
def test_every_run_line_runs_in_a_plain_debian(repository: Path, tmp_path: Path) -> None:
    """The workbook then runs in the result, also as a different user."""
    root, log = tmp_path / "root", tmp_path / "log"
    subprocess.run(["debootstrap", "--variant=minbase", "bookworm", str(root)], check=True,
                   stdout=subprocess.DEVNULL, timeout=1200)  # fmt: skip
    try_in(Chroot(root, repository), log)
    shutil.rmtree(root)


def try_in(system: Chroot, log: Path) -> None:
    for word, rest in instructions(system.repository / "Dockerfile"):
        system.follow(word, rest, log)
    small = "--loader synthetic --network tiny --image-shape 32 -b 8 --benchmark-iters 4 -e 1"
    runs = {
        f"rn50 run {small} --run-dir /tmp/root-run && test -s /tmp/root-run/report.json": "0:0",
        f"rn50 run {small} --run-dir /tmp/own-run && test -s /tmp/own-run/report.json": "1000:1000",
        # as `make lab` does first: nothing is left to do, and nothing may be written
        "make setup": "1000:1000",
        "python -c 'import horovod.torch, horovod.tensorflow'": "1000:1000",
        "mpirun --version && ssh -V && /usr/sbin/sshd -t -h /etc/ssh/ssh_host_rsa_key": "0:0",
        "im=python; $im -m data_prep.im2rec --help && rn50 workshop --help": "1000:1000",
    }
    for command, user in runs.items():
        system.run(command, log, user)
