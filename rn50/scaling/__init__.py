"""A model of a training on 8, 64 or 512 GPUs, which adds up the time of a step.

`links` holds the constants with their sources, `model` the arithmetic of a step.
"""

from rn50.scaling.model import Cluster, PredictedStep, Training, predict

__all__ = ["Cluster", "PredictedStep", "Training", "predict"]
