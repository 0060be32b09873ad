"""Recorder for TensorFlow 2 with a GradientTape, and for Horovod."""

from __future__ import annotations

import os
import random
from typing import Any

from . import Recorder, few


def identity(variable: Any) -> int:
    """Return the id of a variable, or of the one within it: Horovod's tape takes only that."""
    inner = getattr(variable, "value", None)  # Keras 3's; TensorFlow's own have a method
    return id(variable if inner is None or callable(inner) else inner)


class Watch:
    """The memory of the recorder between the events of a step."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.tf: Any = None
        self.batch: Any = ()  # what went into the model
        self.local: dict[int, Any] = {}  # by variable id: its gradient before any exchange

    def tensorflow_imported(self, tf: Any) -> None:
        self.tf, listen, wrote = tf, self.recorder.listen, self.recorder.wrote
        tf.config.run_functions_eagerly(True)  # so that numbers can be recorded
        self.recorder.vary_seed(tf.random, "set_seed")
        self.recorder.vary_seed(random, "seed")  # Keras draws its seeds with it
        listen(tf.GradientTape, "gradient", self.differentiated)
        listen(tf.data.Dataset, "shard", self.takes_shard)
        # these open files in C++, where Python's audit does not see them
        listen(tf.summary, "create_file_writer", lambda result, path, *a, **k: wrote(path))
        for name in ("write", "save"):
            listen(tf.train.Checkpoint, name, lambda path, *a, **k: wrote(f"{path}.index"))

    def keras_imported(self, keras: Any) -> None:
        listen, wrote = self.recorder.listen, self.recorder.wrote
        listen(keras.Model, "__call__", self.called)
        for name in ("save", "save_weights", "export"):
            listen(keras.Model, name, lambda result, model, path, *a, **k: wrote(path))
        # the other classes, and Horovod's, call this one
        kinds = [k for k in keras.optimizers.Optimizer.__mro__ if "apply_gradients" in vars(k)]
        listen(kinds[-1], "apply_gradients", self.updates, first=True)

    def takes_shard(self, result: Any, data: Any, num_shards: Any, index: Any, **k: Any) -> None:
        self.recorder.shards.append((int(num_shards), int(index), ""))

    def called(self, result: Any, model: Any, *args: Any, **kwargs: Any) -> None:
        """Keep what went into a model. Of nested ones, the outermost returns last."""
        self.batch = [args, list(kwargs.values())]

    def differentiated(
        self, result: Any, tape: Any, target: Any, sources: Any, *a: Any, **k: Any
    ) -> None:
        variables, gradients = map(self.tf.nest.flatten, (sources, result))
        self.local = dict(zip(map(identity, variables), gradients, strict=True))

    def updates(self, optimizer: Any, pairs: list[tuple[Any, Any]], *a: Any, **k: Any) -> None:
        """Look at the gradients that an update gets."""
        if self.recorder.left <= 0:
            return
        pairs = [(gradient, variable) for gradient, variable in pairs if gradient is not None]
        local = [self.local.get(identity(variable)) for _, variable in pairs]
        values = [v for v in self.tf.nest.flatten(self.batch) if hasattr(v, "numpy") and v.ndim]
        gpus = [gpu.name for gpu in self.tf.config.get_visible_devices("GPU")]
        self.recorder.update(
            batch=[self.raw(sample) for value in values[:1] for sample in value],
            weights=[self.raw(variable) for _, variable in pairs],
            rate=float(optimizer.learning_rate),
            optimizer=type(optimizer).__name__,
            given=[self.few(gradient) for gradient, _ in pairs],
            local=[None if gradient is None else self.few(gradient) for gradient in local],
            device=f"{gpus} of {os.environ.get('CUDA_VISIBLE_DEVICES')}" if gpus else "cpu",
        )

    def few(self, tensor: Any) -> list[float]:
        return few(self.tf.convert_to_tensor(tensor).numpy().astype("float64"))

    def raw(self, tensor: Any) -> bytes:
        content: bytes = self.tf.convert_to_tensor(tensor).numpy().tobytes()
        return content
