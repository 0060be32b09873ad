"""What a script does with TensorFlow, tf.keras, Keras and Horovod's parts for them.

Functions of `tf.function` are run eagerly, so that their numbers can be looked at. A graph of
TensorFlow 1 gets one more operation, which every update waits for.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from typing import Any

from workshop.try_script.recorder import Recorder, after, before, digest, quietly, stride

HVD = ("broadcast_variables", "broadcast_global_variables", "broadcast_object", "allreduce",
       "grouped_allreduce", "allgather", "DistributedOptimizer", "DistributedGradientTape",
       "BroadcastGlobalVariablesHook", "broadcast", "broadcast_")  # fmt: skip
CALLBACKS = ("BroadcastGlobalVariablesCallback", "LearningRateWarmupCallback")


def listeners(recorder: Recorder) -> dict[str, Callable[[Any], None]]:
    watch = Watch(recorder)

    def counted(module: Any) -> None:
        recorder.count(module, HVD, "hvd.")
        if hasattr(module, "broadcast_variables"):
            before(module, "broadcast_variables", watch.sends)

    def callbacks(module: Any) -> None:
        recorder.count(module, CALLBACKS, "hvd.callbacks.")

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
        self.latest: Callable[[], None] = lambda: None
        self.rates: dict[int, Any] = {}  # id of an optimizer of TensorFlow 1: its learning rate
        self.sent: dict[int, Any] = {}  # variables that one rank has sent to all, by their id
        self.batches: dict[int, list[Any]] = {}  # id of a graph: what its queues and iterators give

    def sends(self, variables: Any, *args: Any, **kwargs: Any) -> None:
        self.sent.update((id(variable), variable) for variable in variables)

    def tensorflow_imported(self, tf: Any) -> None:
        self.tf = tf
        tf.config.run_functions_eagerly(True)
        after(tf.GradientTape, "gradient", self.differentiated)
        v1 = tf.compat.v1
        after(v1.train.Optimizer, "compute_gradients", self.computed)
        self.around_update(v1.train.Optimizer, "apply_gradients")
        for name in dir(v1.train):
            kind: Any = getattr(v1.train, name)
            if isinstance(kind, type) and issubclass(kind, v1.train.Optimizer):
                if "__init__" in vars(kind) and kind is not v1.train.Optimizer:
                    signature = inspect.signature(vars(kind)["__init__"])
                    before(kind, "__init__", self.keeper(signature))
        before(v1.Session, "run", self.session_runs)
        for owner, name in ((v1.train, "shuffle_batch"), (v1.train, "batch"),
                            (v1.data.Iterator, "get_next")):  # fmt: skip
            after(owner, name, self.batch_made)
        saver = inspect.signature(v1.train.Saver.save)
        before(v1.train.Saver, "save", lambda *a, **k: self.recorder.wrote(
            saver.bind(*a, **k).arguments["save_path"]))  # fmt: skip
        before(tf.train.Checkpoint, "write", lambda s, path, *a, **k: self.recorder.wrote(path))
        before(tf.train.Checkpoint, "save", lambda s, path, *a, **k: self.recorder.wrote(path))
        before(tf.io.gfile.GFile, "__init__", self.opened)
        before(tf.summary, "create_file_writer", lambda path, *a, **k: self.recorder.wrote(path))
        before(v1.summary.FileWriter, "__init__", self.summary)

    def opened(self, file: Any, name: Any, mode: str = "r", *args: Any, **kwargs: Any) -> None:
        if "w" in mode or "a" in mode:
            self.recorder.wrote(name)

    def summary(self, writer: Any, logdir: Any = None, *args: Any, **kwargs: Any) -> None:
        if logdir:
            self.recorder.wrote(logdir)

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

    def session_runs(
        self, session: Any, fetches: Any, feed_dict: Any = None, *a: Any, **k: Any
    ) -> None:
        """A batch that is fed: the largest array of it."""
        import numpy as np

        arrays = [np.asarray(value) for value in (feed_dict or {}).values()]
        arrays = [array for array in arrays if array.ndim]
        if arrays and self.recorder.watching:
            self.recorder.inputs = []  # what was fed before was for something else than an update
            largest = max(arrays, key=lambda array: array.nbytes)
            self.recorder.fed(np.ascontiguousarray(row).tobytes() for row in largest)

    def batch_made(self, result: Any, *args: Any, **kwargs: Any) -> None:
        tensors = [t for t in self.tf.nest.flatten(result) if self.tf.is_symbolic_tensor(t)]
        if tensors:
            tensors.sort(key=lambda tensor: -(tensor.shape.rank or 0))  # pictures before labels
            self.batches.setdefault(id(tensors[0].graph), []).append(tensors[0])

    # gradients and updates

    def keeper(self, signature: inspect.Signature) -> Callable[..., None]:
        """Keeps the learning rate that an optimizer of TensorFlow 1 is made with."""

        def keep(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            given = signature.bind(optimizer, *args, **kwargs)
            given.apply_defaults()
            self.rates[id(optimizer)] = given.arguments.get("learning_rate")

        return keep

    def differentiated(
        self, result: Any, tape: Any, target: Any, sources: Any, *a: Any, **k: Any
    ) -> None:
        flat = self.tf.nest.flatten
        self.local = list(zip(flat(sources), flat(result), strict=True))

    def computed(self, result: Any, *args: Any, **kwargs: Any) -> None:
        self.local = [(variable, gradient) for gradient, variable in result]

    def around_update(self, kind: Any, name: str) -> None:
        """Look at each update; in a graph, make every update wait until it has been looked at."""
        original = getattr(kind, name)

        def update(optimizer: Any, gradients: Any, *args: Any, **kwargs: Any) -> Any:
            gradients = list(gradients)
            looked = None
            with quietly():
                pairs = gradients
                if name == "apply":
                    variables = args[0] if args else kwargs.get("trainable_variables")
                    pairs = list(zip(gradients, variables or [], strict=False))
                looked = self.look(optimizer, [p for p in pairs if p[0] is not None])
            self.applying += 1
            try:
                if looked is not None and not self.tf.executing_eagerly():
                    with self.tf.control_dependencies([looked]):
                        return original(optimizer, gradients, *args, **kwargs)
                result = original(optimizer, gradients, *args, **kwargs)
            finally:
                self.applying -= 1
            if looked is not None and not self.applying:  # the innermost has looked last
                with quietly():
                    self.latest()
            return result

        setattr(kind, name, update)

    def look(self, optimizer: Any, pairs: list[tuple[Any, Any]]) -> Any:
        tf = self.tf
        local = {id(variable): gradient for variable, gradient in self.local}
        found = [local.get(id(variable)) for _, variable in pairs]
        if not any(g is not None for g in found) and len(self.local) == len(pairs):
            found = [gradient for _, gradient in self.local]
        rate = self.rates.get(id(optimizer), getattr(optimizer, "learning_rate", None))
        rate = (
            rate(optimizer.iterations) if hasattr(rate, "get_config") and callable(rate) else rate
        )
        rate = rate() if callable(rate) and not hasattr(rate, "numpy") else rate
        here = [index for index, gradient in enumerate(found) if gradient is not None]
        values = [
            tf.cast(-1.0 if rate is None else rate, tf.float32),
            *(tf.convert_to_tensor(v) for _, v in pairs),
            *(self.few(g) for g, _ in pairs),
            *(self.few(found[index]) for index in here),
        ]
        count = len(pairs)

        def write(rate: Any, *rest: Any) -> None:
            arrays = [value.numpy() if hasattr(value, "numpy") else value for value in rest]
            weights, given, known = arrays[:count], arrays[count : 2 * count], arrays[2 * count :]
            before_exchange: list[Any] = [None] * count
            for index, sample in zip(here, known[: len(here)], strict=True):
                before_exchange[index] = sample.tolist()
            for batch in known[len(here) :]:
                self.recorder.fed(row.tobytes() for row in batch)
            self.recorder.update(
                rates=[] if rate is None or float(rate) < 0 else [float(rate)],
                hash=digest(w.tobytes() for w in weights),
                given=[g.tolist() for g in given],
                local=before_exchange,
                device=self.device(),
                sent=sum(id(v) in self.sent for _, v in pairs) > count / 2,
                sharded=False,
            )

        if tf.executing_eagerly():  # what it is now: the update changes the variables
            values = [tf.identity(value) for value in values]
            self.latest = lambda: write(*values)
            return self.latest

        def in_session(*arrays: Any) -> int:
            with quietly():
                write(*arrays)
            return 0

        values += self.batch_of([g for g, _ in pairs])
        return tf.numpy_function(in_session, values, tf.int64)

    def batch_of(self, gradients: list[Any]) -> list[Any]:
        """The tensor, if there is one, by which a queue or an iterator feeds these gradients. One
        that does not feed them must not be touched: that would take a batch out of it."""
        graph = self.tf.compat.v1.get_default_graph()
        made = {id(tensor.op): tensor for tensor in self.batches.get(id(graph), [])}
        left, seen = [self.tf.convert_to_tensor(g).op for g in gradients] if made else [], set()
        while left:
            operation = left.pop()
            if id(operation) in seen:
                continue
            seen.add(id(operation))
            if id(operation) in made:
                return [made[id(operation)]]
            left += [tensor.op for tensor in operation.inputs]
        return []

    def few(self, tensor: Any) -> Any:
        """The sum and some numbers of a tensor, the same ones each time."""
        tf = self.tf
        flat = tf.cast(tf.reshape(tf.convert_to_tensor(tensor), [-1]), tf.float64)
        count = flat.shape[0]
        every = stride(count) if count else 1
        return tf.concat([[tf.reduce_sum(flat)], flat[::every]], 0)

    def device(self) -> str:
        gpus = [gpu.name for gpu in self.tf.config.get_visible_devices("GPU")]
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "all")
        return f"{', '.join(gpus)} of {seen}" if gpus else "cpu"
