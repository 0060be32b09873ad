"""Recorder for TensorFlow 2 with a GradientTape, and for Horovod.

Functions of `tf.function` run eagerly, so that their numbers can be recorded.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from workshop.observe.recorder import SAMPLED, Recorder, after, before, digest, quietly

EXCHANGES = ("allreduce", "grouped_allreduce", "allgather", "DistributedGradientTape")


def listeners(recorder: Recorder, wrote: Callable[..., None]) -> dict[str, Callable[[Any], None]]:
    """Return what to do after the import of each module."""
    watch = Watch(recorder, wrote)
    return {
        "tensorflow": watch.tensorflow_imported,
        "keras": watch.keras_imported,
        "tf_keras": watch.keras_imported,
        "horovod.tensorflow.mpi_ops": recorder.horovod_imported,
        "horovod.tensorflow.functions": watch.functions_imported,
        "horovod.tensorflow": watch.horovod_imported,
    }


class Watch:
    """The memory of the recorder between the events of a step."""

    def __init__(self, recorder: Recorder, wrote: Callable[..., None]) -> None:
        self.recorder, self.wrote = recorder, wrote
        self.tf: Any = None
        self.calling = 0  # how many calls of models are inside each other
        self.applying = 0  # the same for updates
        self.local: list[tuple[Any, Any]] = []  # (variable, its gradient before any exchange)
        self.state: dict[str, Any] = {}
        self.sent: dict[int, Any] = {}  # variables that were broadcast, by their id
        self.values: set[int] = set()  # hashes of values that were broadcast without a variable

    def tensorflow_imported(self, tf: Any) -> None:
        self.tf = tf
        tf.config.run_functions_eagerly(True)
        self.recorder.vary_seed(tf.random, "set_seed")
        after(tf.GradientTape, "gradient", self.differentiated)
        before(tf.data.Dataset, "shard", self.takes_shard)
        for name in ("write", "save"):
            after(tf.train.Checkpoint, name, lambda path, *a, **k: self.wrote(f"{path}.index"))
        before(tf.summary, "create_file_writer", lambda path, *a, **k: self.wrote(path))

    def takes_shard(self, data: Any, num_shards: Any, index: Any, *a: Any, **k: Any) -> None:
        self.recorder.shards.append((int(num_shards), int(index), ""))

    def horovod_imported(self, module: Any) -> None:
        self.recorder.listen_calls(module, EXCHANGES, "hvd.")
        after(module, "broadcast", self.sends_value)

    def functions_imported(self, module: Any) -> None:
        before(module, "broadcast_variables", self.sends)

    def sends(self, variables: Any, *args: Any, **kwargs: Any) -> None:
        self.sent.update((id(variable), variable) for variable in variables)

    def sends_value(self, value: Any, *args: Any, **kwargs: Any) -> None:
        if self.tf.executing_eagerly():
            self.values.add(hash(value.numpy().tobytes()))

    def keras_imported(self, keras: Any) -> None:
        for kind in keras.optimizers.Optimizer.__mro__:
            if "apply_gradients" in vars(kind):
                self.around_update(kind)
        self.around_call(keras.Model)
        for name in ("save", "save_weights", "export"):
            if hasattr(keras.Model, name):
                before(keras.Model, name, lambda model, path, *a, **k: self.wrote(path))

    def around_call(self, kind: Any) -> None:
        """Look at what goes into a model."""
        original = kind.__call__

        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            self.calling += 1
            try:
                if self.calling == 1 and kwargs.get("training") is not False:
                    with quietly():
                        self.fed([*args, *kwargs.values()])
                return original(model, *args, **kwargs)
            finally:
                self.calling -= 1

        kind.__call__ = call

    def fed(self, values: list[Any]) -> None:
        for value in self.tf.nest.flatten(values):
            if hasattr(value, "numpy") and value.ndim and self.recorder.watching:
                self.recorder.fed(row.tobytes() for row in value.numpy())
                return

    def differentiated(
        self, result: Any, tape: Any, target: Any, sources: Any, *a: Any, **k: Any
    ) -> None:
        flat = self.tf.nest.flatten
        self.local = list(zip(flat(sources), flat(result), strict=True))

    def around_update(self, kind: Any) -> None:
        """Look at each update. The classes call each other, and the innermost looks last."""
        original = kind.apply_gradients

        def update(optimizer: Any, pairs: Any, *args: Any, **kwargs: Any) -> Any:
            pairs = list(pairs)
            if self.recorder.watching and self.tf.executing_eagerly():
                with quietly():
                    self.state = self.look(optimizer, [p for p in pairs if p[0] is not None])
            self.applying += 1
            try:
                result = original(optimizer, pairs, *args, **kwargs)
            finally:
                self.applying -= 1
            if not self.applying and self.state:
                with quietly():
                    self.recorder.update(**self.state)
                self.state = {}
            return result

        kind.apply_gradients = update

    def look(self, optimizer: Any, pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        local = {id(variable): gradient for variable, gradient in self.local}
        found = [local.get(id(variable)) for _, variable in pairs]
        if not any(g is not None for g in found) and len(self.local) == len(pairs):
            found = [gradient for _, gradient in self.local]
        rate = optimizer.learning_rate
        if callable(rate) and hasattr(rate, "get_config"):  # a schedule
            rate = rate(optimizer.iterations)
        contents = [self.tf.convert_to_tensor(v).numpy().tobytes() for _, v in pairs]
        for (_, variable), content in zip(pairs, contents, strict=True):
            if hash(content) in self.values:
                self.sends([variable])
        gpus = [gpu.name for gpu in self.tf.config.get_visible_devices("GPU")]
        return {
            "rates": [float(rate)],
            "hash": digest(contents),
            "given": [self.few(gradient) for gradient, _ in pairs],
            "local": [None if gradient is None else self.few(gradient) for gradient in found],
            "device": f"{gpus} of {os.environ.get('CUDA_VISIBLE_DEVICES')}" if gpus else "cpu",
            "sent": sum(id(v) in self.sent for _, v in pairs) > len(pairs) / 2,
        }

    def few(self, tensor: Any) -> list[float]:
        """Return the sum and some numbers of a tensor, the same ones each time."""
        flat = self.tf.convert_to_tensor(tensor).numpy().astype("float64").reshape(-1)
        return [float(flat.sum()), *flat[:: max(1, flat.size // SAMPLED)].tolist()]
