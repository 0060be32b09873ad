"""Writes the second part of a requirement file: the exact versions of what the first part brings.

    .venv/bin/python scripts/lock.py requirements-cpu.txt

pip resolves the first part for the oldest Python that is served, and installs nothing. Run it on
Linux x86_64 after changing the first part, then run the tests before committing.

pip reads the markers in packages (papermill's `aiohttp; python_version == "3.12"`) for the Python
that runs it, whatever it resolves for. So pins that have a marker themselves are kept as they are;
`make acceptance T=test_resolving` tells which are missing.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import requirements

OLDEST = "3.11.2"  # Debian 12's own


def resolve(lines: tuple[str, ...]) -> dict[str, str]:
    """Name -> version of everything that pip would install for these lines into an empty place."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = Path(folder, "asked.txt")
        wanted.write_text("\n".join(lines))
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
        command += ["--ignore-installed", "--report", str(report), "-r", str(wanted)]
        command += ["--only-binary=:all:", "--python-version", OLDEST, "--target", folder]
        subprocess.run(command, check=True)
        installs = json.loads(report.read_text())["install"]
    # A local version ("2.13.0+cpu") names one index's build; the public version is the pin.
    return {i["metadata"]["name"]: i["metadata"]["version"].split("+")[0] for i in installs}


def main() -> None:
    """Rewrite the second part of the files named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="requirements-cpu.txt, ...")
    for path in parser.parse_args().files:
        before = requirements.read(path)
        asked = before.asked
        named = {requirements.name_of(line) for line in asked}
        found = resolve(asked)
        brought = {n: v for n, v in found.items() if requirements.normal(n) not in named}
        kept = {line.partition("==")[0]: line for line in before.brought if ";" in line}
        lines = kept | {name: f"{name}=={version}" for name, version in brought.items()}
        pins = [lines[name] for name in sorted(lines, key=str.lower)]
        first = path.read_text().partition(requirements.BROUGHT)[0].rstrip()
        path.write_text(f"{first}\n\n{requirements.BROUGHT}\n" + "\n".join(pins) + "\n")
        print(f"{path}: {len(asked)} asked for, {len(pins)} brought")


if __name__ == "__main__":
    main()
