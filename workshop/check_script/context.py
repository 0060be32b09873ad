"""What kind of training a script does: its library, its loop, its data, its optimizer."""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass

from workshop.check_script.assignments import Key
from workshop.check_script.flow import Flow
from workshop.check_script.script import LIBRARIES, LOOPS, Function, Script, argument

DDP, TORCH, TAPE, KERAS, TF1 = "ddp", "horovod torch", "tape", "keras", "tf1"

UPDATES = ("backward", "apply_gradients", "minimize", "train_on_batch", "fit", "fit_generator")
QUEUES = ("string_input_producer", "make_one_shot_iterator", "make_initializable_iterator")
FITS = ("fit", "fit_generator")
TF1_NAMES = (
    "placeholder",
    "MonitoredTrainingSession",
    "get_or_create_global_step",
    "shuffle_batch",
)
# libraries that do several of the changes by themselves, in their own way
FRAMEWORKS = (
    "accelerate", "lightning", "pytorch_lightning", "deepspeed", "transformers", "ray", "composer",
    "colossalai", "fastai", "byteps", "mxnet",
)  # fmt: skip
# attributes and methods that only models and optimizers have
OF_MODELS = {
    "parameters", "named_parameters", "trainable_variables", "trainable_weights", "state_dict",
    "compile", "fit", "eval", "zero_grad", "apply_gradients", "minimize",
}  # fmt: skip


@dataclass
class Context:
    """A script, the dependences in it, and what was recognised of the training."""

    script: Script
    flow: Flow

    def __post_init__(self) -> None:
        s = self.script
        self.horovod = s.mentions("horovod")
        self.ddp = not self.horovod and (
            s.mentions("torch.distributed", "torch.nn.parallel")
            or any(name.startswith("torch.distributed.") for name in self.names())
        )
        self.tf1 = any(s.find(name, under="tensorflow") for name in TF1_NAMES)
        self.torch = s.mentions("torch")
        self.other = next((name for name in FRAMEWORKS if s.mentions(name)), None)
        if any(name.startswith("tensorflow.distribute.") for name in self.names()):
            self.other = "tf.distribute"
        self.models = self._models()
        self.updates = [
            call
            for call in s.find(*UPDATES)
            if s.name(call.func).split(".")[0] not in LIBRARIES
            and isinstance(call.func, ast.Attribute)
        ]
        self.framework = self._framework()
        self.elsewhere = self._elsewhere()
        self.loops = self._loops()
        self.data = self._data()
        self.reached = self.flow.reach(*self.data, without=self.models)

    def names(self) -> list[str]:
        return [name for entries in self.script.calls.values() for name, _ in entries]

    @property
    def parallel(self) -> bool:
        """Whether the script means to run as several processes that share one training."""
        return self.horovod or self.ddp

    def _framework(self) -> str:
        s = self.script
        if self.ddp or (self.torch and not self.horovod and not s.mentions("tensorflow")):
            return DDP
        if s.mentions("horovod.torch"):
            return TORCH
        if self.tf1:
            return TF1
        if s.mentions("horovod.keras", "horovod.tensorflow.keras") or any(
            call.func.attr in FITS for call in self.updates if isinstance(call.func, ast.Attribute)
        ):
            return KERAS
        return TAPE

    def _elsewhere(self) -> str | None:
        """Why the training cannot be seen in this file; None where it can."""
        s = self.script
        for call in s.find("exec", "run_path", "run_module"):
            return f"line {call.lineno} runs code that this check does not see"
        own = [m for m in s.stars if m.split(".")[0] not in LIBRARIES]
        if own and not self.updates:
            return f"the training comes from `{own[0]}`, another file"
        if self.updates:
            return None
        calls = s.foreign_calls("train|fit|run|main|learn|launch|step|engine") or s.foreign_calls()
        if calls:
            return f"no training loop is here; `{calls[0][0]}`, defined elsewhere, may hold it"
        if s.find("import_module", "__import__"):
            return "no training loop is here, and modules are imported by a name that is computed"
        return "no training loop was found in this file"

    def _models(self) -> frozenset[Key]:
        found: set[Key] = set()
        for node in self.script.nodes:
            if isinstance(node, ast.Attribute) and node.attr in OF_MODELS:
                key = self.flow.key(node.value)
                if key:
                    found.add(key)
        return frozenset(found)

    # --- the loop and what it is fed --------------------------------------------------------------

    def _loops(self) -> list[ast.AST]:
        """The loops that hold an update, directly or in a function that they call."""
        found: list[ast.AST] = []
        for update in self.training_calls():
            outer = self.script.loop_of(update)
            while outer is not None:
                if outer not in found:
                    found.append(outer)
                outer = self.script.loop_of(outer)
        return found

    def training_calls(self) -> list[ast.Call]:
        """The updates, session runs of them, and the calls of functions that hold one of these."""
        if hasattr(self, "_training"):
            return self._training
        work = list(self.updates)
        if self.tf1:
            work += [call for call in self.script.find("run") if self._runs_update(call)]
        seen: set[ast.AST] = set(work)
        holders: set[Function] = set()
        for call in work:  # grows
            holder = self.script.function_of(call)
            if holder and holder not in holders:
                holders.add(holder)
                for site in self.flow.call_sites.get(holder, []):
                    if site not in seen:
                        seen.add(site)
                        work.append(site)
        self._training: list[ast.Call] = work
        return work

    def _runs_update(self, call: ast.Call) -> bool:
        """Whether `session.run(...)` runs what `minimize` or `apply_gradients` returned."""
        if not call.args or not isinstance(call.func, ast.Attribute):
            return False
        return any(
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("minimize", "apply_gradients")
            for node in self.flow.reach(call.args[0])
        )

    def session_runs(self) -> list[ast.Call]:
        return [c for c in self.script.find("run") if self._runs_update(c)] if self.tf1 else []

    def _data(self) -> list[ast.AST]:
        """The expressions that the training takes its pictures and labels from."""
        found: list[ast.AST] = []
        feeds = [argument(call, 1, "feed_dict") for call in self.session_runs()]
        if any(feeds) and not self.script.find(*QUEUES):
            return [feed for feed in feeds if feed is not None]
        for call in self.training_calls():
            last = call.func.attr if isinstance(call.func, ast.Attribute) else ""
            if call not in self.updates:
                found += [*call.args, *(k.value for k in call.keywords)]
            elif last in FITS:
                found += [a for a in (argument(call, 0, "x", "generator"),) if a is not None]
            elif last == "backward":
                found.append(call.func)
            else:
                found += call.args
        for loop in self.loops:
            if isinstance(loop, (ast.For, ast.AsyncFor)):
                found.append(loop.iter)
            found += [
                node
                for node in ast.walk(loop)
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "next"
            ]
        return found

    def in_training(self, node: ast.AST) -> bool:
        """Whether a node runs again and again while training."""
        inside = self.function_loops
        return any(outer in self.loops or outer in inside for outer in self.script.above(node))

    @functools.cached_property
    def function_loops(self) -> set[ast.AST]:
        """The functions that hold an update and are called in a loop."""
        return {
            holder
            for call in self.training_calls()
            if (holder := self.script.function_of(call))
            and any(self.script.loop_of(site) for site in self.flow.call_sites.get(holder, []))
        }


def is_loop(node: ast.AST) -> bool:
    return isinstance(node, LOOPS)
