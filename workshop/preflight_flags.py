"""The flags of `rn50 workshop preflight`; what it does stands in `preflight_hosts`."""

from __future__ import annotations

from typing import Any

SSH = "ssh -o BatchMode=yes -o ConnectTimeout=10"


def add_parser(verbs: Any) -> None:
    """The flags."""
    made = verbs.add_parser(
        "preflight",
        help="is this machine, or are these hosts, ready for a class?",
        epilog="Exit status: 0 all are ready, 1 one is not, 2 the command is wrong.",
    )
    made.add_argument("hosts", nargs="*", metavar="HOST", help="asked by ssh (default: this one)")
    made.add_argument("--quick", action="store_true", help="import no framework, run no notebook")
    made.add_argument("--json", action="store_true", help="the findings as one JSON object")
    made.add_argument("--need-gpu", action="store_true", help="a machine without GPU is not ready")
    made.add_argument(
        "--prepare", action="store_true",
        help="first make the data of all notebooks in $RN50_DATA, for every user to read",
    )  # fmt: skip
    made.add_argument(
        "--dir", metavar="DIR", help="the course on the hosts (default: where it is here)"
    )
    made.add_argument(
        "--ssh", default=SSH, metavar="COMMAND", help=f"how to reach a host (default: {SSH})"
    )
