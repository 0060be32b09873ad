"""What a run is: one experiment, a few axes, which flags, presets, files and notebooks fill in.

An `Experiment` holds what was given (None: nothing). `defaults.resolve` fills in the rest once,
from the machine, the data set and the profile, and says why: a `Config`. `checks` refuses what is
impossible here; `description` puts a run in words. A value that was given is never changed.
"""

from rn50lib.config.experiment import LOADERS, Experiment, flag_name
from rn50lib.config.file import Config, experiment_from, flags_of, read_experiment

__all__ = [
    "LOADERS",
    "Config",
    "Experiment",
    "experiment_from",
    "flag_name",
    "flags_of",
    "read_experiment",
]
