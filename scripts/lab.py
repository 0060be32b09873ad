"""Opens JupyterLab at the course, on this machine only unless --bind says otherwise.

    .venv/bin/python scripts/lab.py [--bind 0.0.0.0] [--port 8888]      (`make lab`)

Jupyter makes a new token each time; the address that it prints contains it.
"""

from __future__ import annotations

import argparse
import getpass
import importlib.util
import os
import socket
import sys
from pathlib import Path

from requirements import ROOT


def first_page() -> str:
    """The notebook to open, as a path under the project."""
    notebooks = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
    return notebooks[0].relative_to(ROOT).as_posix() if notebooks else ""


def ways_in(port: int) -> list[str]:
    """How to reach it from another machine, and from a container."""
    reach = f"ssh -L {port}:localhost:{port} {getpass.getuser()}@{socket.gethostname()}"
    docker = (
        f"docker run --rm -it --gpus all --ipc=host -p {port}:{port} -v {ROOT}:/workspace/resnet50"
        " rn50 make lab BIND=0.0.0.0"
    )
    return [
        "From another machine, run this there and open the localhost address below in its browser:",
        f"  {reach}",
        "In a container, after `docker build -t rn50 .` (without --gpus where there is none):",
        f"  {docker}" + (f" PORT={port}" if port != 8888 else ""),
    ]


def command(bind: str, port: int) -> list[str]:
    """The JupyterLab command line."""
    # a container's own JupyterLab has no program in .venv
    words = [sys.executable, "-m", "jupyterlab", f"--ip={bind}", f"--port={port}"]
    words += [f"--ServerApp.root_dir={ROOT}"]
    words += [f"--LabApp.default_url=/lab/tree/{first_page()}"]
    if os.geteuid() == 0:
        words.append("--allow-root")
    local = bind in ("localhost", "127.0.0.1")
    if not local or not (os.environ.get("DISPLAY") or sys.platform == "darwin"):
        words.append("--no-browser")
    return words


def pages() -> Path | None:
    """Where the browser's part of JupyterLab lies, if that is not below `sys.prefix`, where it is
    looked for: in a container whose JupyterLab is used from .venv."""
    found = importlib.util.find_spec("jupyterlab")
    if Path(sys.prefix, "share", "jupyter", "lab").is_dir() or not (found and found.origin):
        return None
    beside = Path(found.origin).parents[4] / "share" / "jupyter" / "lab"
    return beside if beside.is_dir() else None


def main() -> None:
    """Print the ways in and become JupyterLab."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bind", default="localhost", help="address to listen on")
    parser.add_argument("--port", type=int, default=8888)
    arguments = parser.parse_args()
    print("\n".join(ways_in(arguments.port)), flush=True)
    words = command(arguments.bind, arguments.port)
    # its settings leave out JupyterLab's question about news, which covers the first page
    settings = [str(ROOT / "scripts" / "jupyter"), os.environ.get("JUPYTER_CONFIG_PATH", "")]
    os.environ["JUPYTER_CONFIG_PATH"] = os.pathsep.join(filter(None, settings))
    elsewhere = pages()
    if elsewhere:
        os.environ.setdefault("JUPYTERLAB_DIR", str(elsewhere))
    os.execv(words[0], words)


if __name__ == "__main__":
    main()
