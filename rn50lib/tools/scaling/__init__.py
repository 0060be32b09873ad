"""What a training would do on 8, 64 or 512 GPUs, and why: a model that adds up a step's time.

`links` holds the constants with their sources, `model` the arithmetic of a step, `fit` what is
calibrated and how. NumPy is all that it needs.
"""

from rn50lib.tools.scaling.fit import MODEL, READINGS, RIVALS, fit
from rn50lib.tools.scaling.model import Cluster, Step, Training, predict

__all__ = ["MODEL", "READINGS", "RIVALS", "Cluster", "Step", "Training", "fit", "predict"]
