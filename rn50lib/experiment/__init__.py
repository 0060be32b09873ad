"""One experiment, a few axes: the run as data, which flags, presets and notebooks fill in.

`Experiment` holds what was asked for (None: not given); `resolve` fills in the rest once, from the
machine, the data set and the profile, and says why. A value that was given is never changed.
"""

from rn50lib.experiment.checks import check, has_dali
from rn50lib.experiment.fields import LOADERS, Experiment, flag_name
from rn50lib.experiment.filling import data_home, default_data_root, is_roadsigns, resolve
from rn50lib.experiment.full import FullExperiment, Resolved
from rn50lib.experiment.words import arithmetic, batch_remark, recipe_line, schedule_remark

__all__ = [
    "LOADERS",
    "Experiment",
    "FullExperiment",
    "Resolved",
    "arithmetic",
    "batch_remark",
    "check",
    "data_home",
    "default_data_root",
    "flag_name",
    "has_dali",
    "is_roadsigns",
    "recipe_line",
    "resolve",
    "schedule_remark",
]
