"""What a training would do on 8, 64 or 512 GPUs: a model that adds up a step's time.

`links` holds the constants with their sources, `model` the arithmetic of a step.
"""

from rn50.scaling.model import Cluster, PredictedStep, Training, predict

__all__ = ["Cluster", "PredictedStep", "Training", "predict"]
