"""Recorder for TensorFlow 2, tf.keras, Keras and Horovod for them.

Functions of `tf.function` are run eagerly, so that their numbers can be looked at.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from workshop.try_script.recorder import Recorder, after, before, digest, quietly, stride

HVD = ("broadcast_variables", "broadcast_global_variables", "broadcast_object", "allreduce",
       "grouped_allreduce", "allgather", "DistributedOptimizer", "DistributedGradientTape",
       "broadcast", "broadcast_")  # fmt: skip
CALLBACKS = ("BroadcastGlobalVariablesCallback", "LearningRateWarmupCallback")


def listeners(recorder: Recorder) -> dict[str, Callable[[Any], None]]:
    watch = Watch(recorder)

    def counted(module: Any) -> None:
        recorder.count(module, HVD, "hvd.")
        if hasattr(module, "broadcast_variables"):
            before(module, "broadcast_variables", watch.sends)

    def callbacks(module: Any) -> None:
        recorder.count(module, CALLBACKS, "hvd.callbacks.")
        before(module.LearningRateWarmupCallback, "__init__", watch.warms_up)

    keras = ("horovod.keras", "horovod.tensorflow.keras")
    return {
        "tensorflow": watch.tensorflow_imported,
        "keras": watch.keras_imported,
        "tf_keras": watch.keras_imported,
        "horovod.tensorflow.mpi_ops": recorder.horovod_imported,
        "horovod.tensorflow.functions": counted,
        "horovod.tensorflow": counted,
        **dict.fromkeys(keras, counted),
        **{f"{name}.callbacks": callbacks for name in keras},
    }


class Watch:
    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.tf: Any = None
        self.calling: list[Any] = []  # Keras models that are being called, the outermost first
        self.local: list[tuple[Any, Any]] = []  # (variable, its gradient before any exchange)
        self.applying = 0
        self.latest: dict[str, Any] = {}
        self.peak: float | None = None  # of the learning rate, after Horovod's warm-up
        self.shards: list[tuple[int, int]] = []  # of data: how many, and which
        self.sent: dict[int, Any] = {}  # variables that one rank has sent to all, by their id

    def sends(self, variables: Any, *args: Any, **kwargs: Any) -> None:
        self.sent.update((id(variable), variable) for variable in variables)

    def warms_up(self, callback: Any, initial_lr: Any, *args: Any, **kwargs: Any) -> None:
        self.peak = float(initial_lr)

    def tensorflow_imported(self, tf: Any) -> None:
        self.tf = tf
        tf.config.run_functions_eagerly(True)
        after(tf.GradientTape, "gradient", self.differentiated)
        before(tf.data.Dataset, "shard", self.takes_shard)
        before(tf.train.Checkpoint, "write", lambda s, path, *a, **k: self.recorder.wrote(path))
        before(tf.train.Checkpoint, "save", lambda s, path, *a, **k: self.recorder.wrote(path))
        before(tf.io.gfile.GFile, "__init__", self.opened)
        before(tf.summary, "create_file_writer", lambda path, *a, **k: self.recorder.wrote(path))

    def opened(self, file: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
        if "w" in mode or "a" in mode:
            self.recorder.wrote(name)

    def takes_shard(self, data: Any, num_shards: Any, index: Any, *a: Any, **k: Any) -> None:
        self.shards.append((int(num_shards), int(index)))

    def keras_imported(self, keras: Any) -> None:
        """Keras 2 (tf_keras) updates in `apply_gradients`, each class handing on to the one that it
        was made from; Keras 3 in `apply`."""
        optimizers = keras.optimizers
        if hasattr(optimizers.Optimizer, "apply"):
            self.around_update(optimizers.Optimizer, "apply")
        else:
            kinds = [*optimizers.Optimizer.__mro__, optimizers.legacy.Optimizer]
            for kind in kinds:
                if "apply_gradients" in vars(kind):
                    self.around_update(kind, "apply_gradients")
        self.around_call(keras.Model)
        for name in ("save", "save_weights", "export"):
            if hasattr(keras.Model, name):
                before(keras.Model, name, lambda m, path, *a, **k: self.recorder.wrote(path))

    # what goes in

    def around_call(self, kind: Any) -> None:
        original = kind.__call__

        def call(model: Any, *args: Any, **kwargs: Any) -> Any:
            self.calling.append(model)
            try:
                if len(self.calling) == 1 and kwargs.get("training") is not False:
                    with quietly():
                        self.fed([*args, *kwargs.values()])
                return original(model, *args, **kwargs)
            finally:
                self.calling.pop()

        kind.__call__ = call

    def fed(self, values: Sequence[Any]) -> None:
        tf = self.tf
        for value in tf.nest.flatten(list(values)):
            if hasattr(value, "numpy") and value.ndim and self.recorder.watching:
                self.recorder.fed(row.tobytes() for row in value.numpy())
                return

    # gradients and updates

    def differentiated(
        self, result: Any, tape: Any, target: Any, sources: Any, *a: Any, **k: Any
    ) -> None:
        flat = self.tf.nest.flatten
        self.local = list(zip(flat(sources), flat(result), strict=True))

    def around_update(self, kind: Any, name: str) -> None:
        """Look at each update. The classes call each other: the innermost has looked last."""
        original = getattr(kind, name)

        def update(optimizer: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
            gradients = pairs = list(gradients)
            if name == "apply":
                variables = args[0] if args else kwargs.get("trainable_variables")
                pairs = list(zip(gradients, variables or [], strict=False))
            if self.recorder.watching and self.tf.executing_eagerly():
                with quietly():
                    self.latest = self.look(optimizer, [p for p in pairs if p[0] is not None])
            self.applying += 1
            try:
                result = original(optimizer, gradients, *args, **kwargs)
            finally:
                self.applying -= 1
            if not self.applying and self.latest:
                with quietly():
                    self.recorder.update(**self.latest)
                self.latest = {}
            return result

        setattr(kind, name, update)

    def look(self, optimizer: Any, pairs: list[tuple[Any, Any]]) -> dict[str, Any]:
        local = {id(variable): gradient for variable, gradient in self.local}
        found = [local.get(id(variable)) for _, variable in pairs]
        if not any(g is not None for g in found) and len(self.local) == len(pairs):
            found = [gradient for _, gradient in self.local]
        rate, peak = getattr(optimizer, "learning_rate", None), self.peak
        if callable(rate) and hasattr(rate, "get_config"):  # a schedule
            peak = max(float(rate(2**n)) for n in range(20))
            rate = rate(optimizer.iterations)
        elif callable(rate) and not hasattr(rate, "numpy"):
            rate = rate()
        return {
            "rates": [] if rate is None else [float(rate)],
            "peak": peak,
            "hash": digest(self.tf.convert_to_tensor(v).numpy().tobytes() for _, v in pairs),
            "given": [self.few(gradient) for gradient, _ in pairs],
            "local": [None if gradient is None else self.few(gradient) for gradient in found],
            "device": self.device(),
            "sent": sum(id(v) in self.sent for _, v in pairs) > len(pairs) / 2,
            "sharded": False,
            "data": {},
            "shards": self.shards,
        }

    def few(self, tensor: Any) -> list[float]:
        """The sum and some numbers of a tensor, the same ones each time."""
        flat = self.tf.convert_to_tensor(tensor).numpy().astype("float64").reshape(-1)
        return [float(flat.sum()), *flat[:: stride(flat.size)].tolist()]

    def device(self) -> str:
        gpus = [gpu.name for gpu in self.tf.config.get_visible_devices("GPU")]
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        return f"{', '.join(gpus)} of {seen}" if gpus else "cpu"
