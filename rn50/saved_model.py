"""A checkpoint as a TensorFlow SavedModel, which needs neither Keras nor this library to load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from rn50lib.recipe import MEAN, STD
from rn50lib.resnet import Network
from rn50lib.tensorflow.model import build_model, load_arrays, tensors


def save(net: Network, arrays: Mapping[str, np.ndarray], size: int, folder: Path) -> None:
    """Write the SavedModel with the signature `serving_default`: images -> logits.

    Images are uint8 (N, size, size, 3), logits are float32 (N, classes).
    """
    served = tf.Module()
    served.model = build_model(net, "float32")
    load_arrays(tensors(served.model, net), dict(arrays))

    @tf.function(input_signature=[tf.TensorSpec((None, size, size, 3), tf.uint8, name="images")])
    def serve(images: tf.Tensor) -> dict[str, tf.Tensor]:
        x = (tf.cast(images, tf.float32) - tf.constant(MEAN)) / tf.constant(STD)
        return {"logits": served.model(x, training=False)}

    tf.saved_model.save(served, str(folder), signatures=serve.get_concrete_function())
