"""What the notebooks use: `from rn50lib import workshop`, then `workshop.start("02", profile)`.

Only names are taken here; plotting and widgets are imported when they are first used.
"""

from rn50lib.workshop.checks.ask import CheckFailed, check, hint, solution
from rn50lib.workshop.checks.use import use
from rn50lib.workshop.errors import RunFailed
from rn50lib.workshop.map import course_map
from rn50lib.workshop.output import explore, figure, images, table
from rn50lib.workshop.progress_page import progress, summary
from rn50lib.workshop.runs import Run, train
from rn50lib.workshop.session import Session, start
from rn50lib.workshop.source import show

__all__ = [
    "CheckFailed",
    "Run",
    "RunFailed",
    "Session",
    "check",
    "course_map",
    "explore",
    "figure",
    "hint",
    "images",
    "progress",
    "show",
    "solution",
    "start",
    "summary",
    "table",
    "train",
    "use",
]
