"""`make lab`: JupyterLab at the course, on this machine only, behind a token."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support import free_port

pytestmark = [pytest.mark.slow, pytest.mark.needs("jupyterlab")]


def answers(port: int) -> bool:
    """Return True if a program listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("localhost", port)) == 0


def status(address: str) -> int:
    """Return the HTTP status of an address."""
    try:
        with urllib.request.urlopen(address, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def recipe(repository: Path, env: dict[str, str], *words: str) -> str:
    """Return the shell lines of `make lab` without the first one, the set-up."""
    make = ["make", "--dry-run", "--no-print-directory", "lab", *words]
    done = subprocess.run(make, cwd=repository, env=env, capture_output=True, text=True, check=True)
    return done.stdout.split("\n", 1)[1]


@pytest.fixture(scope="module")
def lab(
    repository: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[subprocess.Popen[bytes], int, str]]:
    """A running lab: its process, its port, and its output when it was ready."""
    folder = tmp_path_factory.mktemp("lab")
    port, log = free_port(), folder / "log"
    env = {**os.environ, "RN50_VENV": sys.prefix}
    lines = recipe(repository, env, f"PORT={port}")
    with log.open("wb") as out:
        process = subprocess.Popen(
            ["sh", "-c", lines], stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            cwd=repository, env=env,
        )  # fmt: skip
    try:
        end = time.monotonic() + 300
        while "?token=" not in log.read_text() or not answers(port):  # the address comes first
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.2)
        yield process, port, log.read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)


def test_lab_listens_locally_and_needs_its_token(
    lab: tuple[subprocess.Popen[bytes], int, str],
) -> None:
    process, port, said = lab
    assert f"ssh -L {port}:localhost:{port} " in said
    assert f"-p 127.0.0.1:{port}:{port}" in said and f"make lab BIND=0.0.0.0 PORT={port}" in said
    addresses = {
        connection.laddr.ip
        for connection in psutil.Process(process.pid).net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port
    }
    assert addresses and addresses <= {"127.0.0.1", "::1"}
    token = re.search(r"\?token=(\w+)", said)
    assert token is not None and len(token[1]) >= 32
    assert "/lab/tree/notebooks/00_start_here.ipynb?token=" in said
    here = f"http://localhost:{port}"
    assert status(f"{here}/api/contents") == 403
    assert status(f"{here}/api/contents?token={token[1]}") == 200


def test_first_page_is_not_covered(lab: tuple[subprocess.Popen[bytes], int, str]) -> None:
    """On its first start, JupyterLab would ask over the notebook whether it may fetch news."""
    token = re.search(r"\?token=(\w+)", lab[2])
    assert token is not None
    with urllib.request.urlopen(f"http://localhost:{lab[1]}/lab?token={token[1]}") as answer:
        page = answer.read().decode()
    told = re.search(r'id="jupyter-config-data"[^>]*>(.*?)</script>', page, re.S)
    assert told is not None
    left_out = json.loads(told[1])["disabledExtensions"]
    assert any(name.startswith("@jupyterlab/apputils-extension:announcements") for name in left_out)


@pytest.mark.parametrize("job", ["", "7"], ids=["alone", "slurm"])
def test_the_printed_port_is_the_one_that_is_used(
    repository: Path, tmp_path: Path, job: str
) -> None:
    """Here 8888 is taken; JupyterLab's command is printed instead of started."""
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(f'#!/bin/sh\ncase $1 in -c) exec {sys.executable} "$@";; esac; echo "$@"')
    python.chmod(0o755)
    env = {**os.environ, "RN50_VENV": str(tmp_path), "PORT": "", "SLURM_JOB_ID": job}
    with socket.socket() as taken:
        if not answers(8888):
            taken.bind(("localhost", 8888))
            taken.listen()
        done = subprocess.run(
            ["sh", "-c", recipe(repository, env)], cwd=repository, env=env, capture_output=True,
            text=True, check=True,
        )  # fmt: skip
    used = re.search(r" --port=(\d+) --ServerApp.port_retries=0 ", done.stdout)
    assert used is not None and 8888 < int(used[1]) < 9888
    assert f"-L {used[1]}:localhost:{used[1]} " in done.stdout
    assert ("@LOGIN_HOST -L" in done.stdout) == bool(job)
