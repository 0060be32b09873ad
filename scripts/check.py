"""Runs the checks of one tier and says how long each took: `quick`, `test` or `acceptance`.

.venv/bin/python scripts/check.py test [pytest arguments]      (`make test`)
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent
LINT = (
    ("ruff check", (sys.executable, "-m", "ruff", "check", "--quiet")),
    ("ruff format", (sys.executable, "-m", "ruff", "format", "--check", "--quiet")),
    ("mypy", (sys.executable, "-m", "mypy", "--no-error-summary")),
    ("notebooks built", (BIN / "rn50", "workshop", "build", "--check")),
)
# Two tests at a time: much of a test's time is the start of a framework, on one core.
TWO = ("-n2", "--dist=worksteal")
TIERS = {
    "quick": ("-q", *TWO, "-m", "not slow and not acceptance"),
    "test": (*TWO, "-m", "not acceptance", "--durations=10"),
    "acceptance": ("-v", "--durations=10"),
}


def main() -> int:
    """Run all checks of the tier, however the earlier ones end; 1 if any failed."""
    if len(sys.argv) < 2 or sys.argv[1] not in TIERS:
        sys.exit(f"error: name a tier: {', '.join(TIERS)}")
    tier, extra = sys.argv[1], sys.argv[2:]
    failed: list[str] = []
    if tier != "acceptance":
        failed += [name for name, command in LINT if not passes(name, command)]
    command = [sys.executable, "-m", "pytest", *TIERS[tier], *extra]
    code = subprocess.run(command, cwd=ROOT).returncode
    failed += ["pytest"] if code else []
    if failed:
        print(f"make {tier} FAILED: {', '.join(failed)}")
    return 1 if failed else 0


def passes(name: str, command: tuple[str | Path, ...]) -> bool:
    """Run one linter; its output is shown only if it fails."""
    start = time.monotonic()
    done = subprocess.run(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    good = done.returncode == 0
    print(f"{name:16} {'ok' if good else 'FAILED'}  {time.monotonic() - start:.1f} s", flush=True)
    if not good:
        print(done.stdout, flush=True)
    return good


if __name__ == "__main__":
    sys.exit(main())
