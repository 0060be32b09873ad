"""The functions for notebooks: `import workshop`, then `workshop.start("02", profile)`.

Plotting is imported when it is first used.
"""

from rn50.plot import FINDING, MEANING
from workshop import ladder
from workshop.checks.ask import check, hint, solution
from workshop.checks.records import progress
from workshop.checks.use import use
from workshop.load_order import load_triton_first
from workshop.observe import try_script
from workshop.opening import start
from workshop.output import figure, log_ticks, quiet_stderr, ranges, spans, table
from workshop.ratio import ratio
from workshop.session import has
from workshop.trace import trace

load_triton_first()

__all__ = [
    "FINDING",
    "MEANING",
    "check",
    "figure",
    "has",
    "hint",
    "ladder",
    "log_ticks",
    "progress",
    "quiet_stderr",
    "ranges",
    "ratio",
    "solution",
    "spans",
    "start",
    "table",
    "trace",
    "try_script",
    "use",
]
