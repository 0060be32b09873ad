"""What a training would do on 8, 64 or 512 GPUs, and why: a model that adds up a step's time.

`links` holds the constants with their sources, `model` the arithmetic of a step, `check` what is
fitted to published rows, and how far the others are missed. NumPy is all that these need.
"""

from rn50.scaling.model import Cluster, PredictedStep, Training, predict

__all__ = ["Cluster", "PredictedStep", "Training", "predict"]
