"""What a run is: one experiment, a few axes, which flags, presets, files and notebooks fill in.

An `Experiment` holds what was given (None: nothing); `resolve` fills in the rest once, from the
machine, the data set and the profile, and says why. A value that was given is never changed.
"""

from rn50lib.config.checks import check, has_dali
from rn50lib.config.defaults import data_home, default_data_root, is_roadsigns, resolve
from rn50lib.config.description import (
    arithmetic,
    batch_remark,
    describe,
    flags_of,
    recipe_line,
    schedule_remark,
)
from rn50lib.config.experiment import LOADERS, Experiment, flag_name
from rn50lib.config.file import Config, experiment_from, from_json, read_experiment, to_json

__all__ = [
    "LOADERS",
    "Config",
    "Experiment",
    "arithmetic",
    "batch_remark",
    "check",
    "data_home",
    "default_data_root",
    "describe",
    "experiment_from",
    "flag_name",
    "flags_of",
    "from_json",
    "has_dali",
    "is_roadsigns",
    "read_experiment",
    "recipe_line",
    "resolve",
    "schedule_remark",
    "to_json",
]
