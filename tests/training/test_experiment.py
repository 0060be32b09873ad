"""The configuration of a run: what was passed stays, the rest is filled in once, with reasons."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from rn50 import autoconfig, benchmark, installed
from rn50.autoconfig import resolve
from rn50.description import command_line, describe
from rn50.parser import PRESETS, config_parser, parse_given, read_file
from rn50lib import resnet as networks
from rn50lib.config import (
    FLAGS,
    Resolved,
    TrainConfig,
    flag_name,
    flags_of,
    validated,
)
from rn50lib.errors import UserError
from rn50lib.hardware import Gpu, Machine
from rn50lib.recipe import RECIPES
from tests.support import LAPTOP, full

WITH_BF16 = replace(LAPTOP, bfloat16="avx512_bf16")


def gpus(*capabilities: tuple[int, int]) -> Machine:
    found = [Gpu(0, "a GPU", 16 * 2**30, number, "550.54", "GPU-0") for number in capabilities]
    return replace(LAPTOP, cores=40, gpus=tuple(found))


GTX = Gpu(0, "NVIDIA GeForce GTX 1650", 4 * 2**30, (7, 5), "550.54", "GPU-0")


def parse(*argv: str) -> dict[str, Any]:
    return parse_given(config_parser("run"), list(argv))[0]


def complete(text: str, machine: Machine = LAPTOP, classes: int = 12) -> TrainConfig:
    """The complete configuration of these flags."""
    return resolve(parse(*text.split()), machine, classes).config


@pytest.fixture(autouse=True)
def no_imagenet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same defaults on a machine that has ImageNet mounted."""
    monkeypatch.setattr(autoconfig, "IMAGENET_ROOT", str(tmp_path / "imagenet"))
    monkeypatch.setenv("RN50_DATA", str(tmp_path / "data"))


@pytest.mark.parametrize(
    ("machine", "flags", "found"),
    [
        (gpus((9, 0)), "", True),
        (gpus((9, 0)), "--num-epochs 1", False),  # a minute of training
        (gpus((9, 0)), "--benchmark-iters 100", False),
        (gpus((9, 0)), "--num-examples 20000", False),
        (gpus((9, 0)), "--set cuda_graph=true", False),
        (gpus((9, 0)), "--override predictor=a.py:f", False),
        (gpus((9, 0)), "--only-inference", False),
        (gpus((9, 0), (9, 0)), "", False),  # not measured
        (LAPTOP, "--dtype float32", False),
    ],
)  # fmt: skip
def test_a_long_run_on_one_gpu_is_compiled(
    machine: Machine, flags: str, found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ImageNet: 90 epochs of 1,281,167 images take hours, one takes minutes."""
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    config = complete(f"--recipe reference --loader native {flags}", machine, classes=1000)
    assert autoconfig.best_compile(config, machine, 1_281_167)[0] is found


def test_what_was_switched_off_stays_off(tmp_path: Path) -> None:
    """In the command that a dry run prints, and in the file of a run that --config reads."""
    asked = parse("--no-compile", "--loader", "synthetic")
    assert asked["compile"] is False and "--no-compile" in flags_of(asked)
    resolved = resolve(asked, LAPTOP, 12)
    assert " --no-compile" in command_line(resolved)
    resolved.write(tmp_path / "experiment.json")
    assert parse("--config", str(tmp_path / "experiment.json"))["compile"] is False
    assert "--no-compile" not in command_line(resolve({}, LAPTOP, 12))


def test_your_predictor_keeps_an_engine_from_being_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autoconfig, "machine", lambda: LAPTOP)
    monkeypatch.setattr(installed, "has", lambda module: True)
    for flags, engine in (
        ("--dtype float32", "openvino"),
        ("--override predictor=a.py:f", "torch"),
    ):
        config = complete(f"--recipe reference --loader native --only-inference {flags}")
        assert autoconfig.best_engine(config, images=10**9)[0] == engine


# --- flags and files ------------------------------------------------------------------------------

words = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=12)
words = words.filter(str.strip)  # U+0085 and U+00A0 are white space


def values_for(name: str) -> st.SearchStrategy[Any]:
    """Return values that the flag of a field accepts."""
    flag = FLAGS[name]
    if name == "data_format":
        return st.sampled_from(flag.choices[1:])  # auto is as if it was not passed
    if flag.choices:
        return st.sampled_from(flag.choices)
    low, high = flag.low or 0, flag.high or 2**40
    by_name = {
        "lr_step_epochs": st.lists(st.floats(0, 1e9), max_size=4).map(sorted).map(tuple),
        "hosts": st.sampled_from(["a:4,b:4", "localhost:2", "c"]),
        "model_prefix": words.map(lambda word: f"{word}m"),
        "loss_scale": st.sampled_from(["dynamic", "dynamic:8:2", "128", "1e3"]),
        "override": words.map(lambda word: (f"schedule={word}.py:f",)),
    }
    by_kind = {
        bool: st.booleans() if flag.default is ... else st.just(True),
        int: st.integers(int(low), int(high)), float: st.floats(low, high), str: words,
        tuple[str, ...]: st.lists(words, min_size=1, max_size=3).map(tuple),
    }  # fmt: skip
    return by_name[name] if name in by_name else by_kind[flag.kind]


some_given = st.fixed_dictionaries({}, optional={name: values_for(name) for name in FLAGS})


@given(some_given)
@example({"data_root": "-x", "model_prefix": "--help", "override": ("-a", "b")})
@example({"lr_step_epochs": (), "lr": 0.1 + 0.2, "report": "a b"})
def test_flags_of_gives_the_same_values_again(asked: dict[str, Any]) -> None:
    assert parse(*flags_of(asked)) == asked


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"batch_size": "8"}, "batch_size '8' must be a whole number"),
        ({"batch_size": 0}, "batch_size 0 must be at least 1"),
        ({"lr": True}, "lr True must be a number"),
        ({"lr": float("nan")}, "lr nan must be a number"),
        ({"batch_size": 8.0}, "batch_size 8.0 must be a whole number"),
        ({"lr_step_epochs": [30, "60"]}, "must be a list of numbers"),
        ({"override": "a=b:c"}, "override 'a=b:c' must be a list of texts"),
        ({"bn_decay": 1}, "bn_decay 1 must be true or false"),
        ({"backend": None}, "backend None must be a text"),
        ({"epochs": 3}, "unknown field 'epochs'"),
    ],
)
def test_a_worker_s_file_is_checked_by_type(
    change: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    values = full().to_dict() | change
    (tmp_path / "a.json").write_text(json.dumps({"experiment": values}))
    with pytest.raises(UserError, match=problem):
        Resolved.read(tmp_path / "a.json")


def test_a_worker_s_file_is_complete(tmp_path: Path) -> None:
    whole = Resolved(full(), {"n": "given"}, ("a cap",))
    whole.write(tmp_path / "a.json")
    assert Resolved.read(tmp_path / "a.json") == whole
    less = re.sub('"batch_size": .*', "", (tmp_path / "a.json").read_text())
    (tmp_path / "a.json").write_text(less)
    with pytest.raises(UserError, match="a.json: no value for batch_size"):
        Resolved.read(tmp_path / "a.json")


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_holds_flags_that_its_verb_takes(name: str) -> None:
    if "BENCHMARK" in name:
        own, asked = benchmark.parse(["--preset", name, "-o", "x"])
        assert own.workers and len(own.batches) > 2 and own.warmup == 1 and asked
    else:
        assert parse("--preset", name) == read_file(PRESETS[name])


# --- filling in -----------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", [LAPTOP, WITH_BF16, gpus((8, 0))])
@pytest.mark.parametrize("asked", [{}, {"recipe": "reference"}, {"recipe": "roadsigns"}])
def test_every_choice_has_its_reason(machine: Machine, asked: dict[str, str]) -> None:
    resolved = resolve(asked, machine, 12)
    required = [name for name, flag in FLAGS.items() if flag.default is ...]
    assert all(resolved.reasons[name] for name in required)
    again = resolve(parse(*flags_of(resolved.config)), machine, 12)  # as a dry run prints it
    assert again.config == resolved.config


@settings(max_examples=40)
@given(some_given)
def test_a_value_that_was_passed_is_never_changed(asked: dict[str, Any]) -> None:
    assume(asked.get("profile") != "ci")
    for machine in (LAPTOP, gpus((7, 0))):
        try:
            resolved = resolve(asked, machine, 12)
        except UserError as error:
            assert "\n" not in str(error)
            continue
        for name, value in asked.items():
            assert getattr(resolved.config, name) == value, name
            assert resolved.reasons[name] == "given", name


def test_horovod_on_gpus_needs_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Horovod without NCCL serves PyTorch by DDP, and TensorFlow only if it is asked for."""
    monkeypatch.setattr(installed, "horovod_serves", lambda backend: True)
    monkeypatch.setattr(installed, "horovod_has", lambda what, backend: False)
    two, machine = {"n": 2, "loader": "synthetic"}, gpus((8, 0), (8, 0))
    assert resolve(two, machine, 12).config.comm == "ddp"
    for asked in ({}, {"launcher": "horovodrun"}):
        with pytest.raises(UserError, match="built without NCCL.*`make horovod`"):
            resolve(two | {"backend": "tensorflow"} | asked, machine, 12)
    wanted = two | {"backend": "tensorflow", "comm": "horovod"}
    assert resolve(wanted, machine, 12).config.comm == "horovod"
    monkeypatch.setattr(installed, "horovod_has", lambda what, backend: True)
    assert resolve(two, machine, 12).config.comm == "horovod"


@pytest.mark.parametrize(
    ("flags", "comm"),
    [
        ("", "horovod"),
        ("--compile", "ddp"),
        ("--compile --comm horovod", "horovod"),
        ("--compile --launcher horovodrun", "horovod"),
        ("--compile --hosts localhost:2", "ddp"),
        ("--compile --hosts a:1,b:1", "horovod"),  # torchrun starts workers on one host
    ],
)
def test_a_compiled_run_exchanges_with_ddp(
    flags: str, comm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless it asks for Horovod: then a line says what that costs."""
    monkeypatch.setattr(installed, "horovod_serves", lambda backend: True)
    resolved = resolve(parse("-n", "2", *flags.split()), LAPTOP, 12)
    assert resolved.config.comm == comm
    lines = describe(resolved)
    if "--compile" in flags:
        assert "every gradient at its end" in lines
    assert ("--comm ddp overlaps" in lines) == (comm == "horovod" and "--compile" in flags)


def test_threads_are_a_share_of_the_fullest_host() -> None:
    asked = {"n": 4, "comm": "horovod", "launcher": "horovodrun", "hosts": "a:3,b:1"}
    asked |= {"batch_size": 4, "recipe": "reference", "data_root": "data", "loader": "native"}
    assert resolve(asked, replace(LAPTOP, cores=9), 12).config.threads == 3


def stamp(folder: Path, content: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / ".complete").write_text(json.dumps(content))
    return folder


def test_generator_stamp_selects_the_built_in_recipe(tmp_path: Path) -> None:
    """The name of a folder does not."""

    def recipe(root: Path) -> str:
        return resolve({"data_root": str(root)}, LAPTOP, 12).config.recipe

    drawn = stamp(tmp_path / "x", {"train": 48, "val": 24, "seed": 0, "version": 3})
    packed = stamp(drawn / "records", {"images": {"train": 48, "val": 24}, "made": "today"})
    (tmp_path / "link").symlink_to(packed)
    assert recipe(drawn) == recipe(packed) == recipe(tmp_path / "link") == "roadsigns"
    mine = drawn / "gtsrb"
    mine.mkdir()
    others = stamp(tmp_path / "roadsigns", {"classes": 1000})
    assert recipe(mine) == recipe(others) == recipe(tmp_path / "roadsigns-ci") == "reference"


def test_defaults_on_a_laptop_and_with_imagenet(tmp_path: Path) -> None:
    config = complete("")
    assert config.data_root == str(tmp_path / "data" / "roadsigns")
    assert (config.recipe, config.image_shape, config.num_epochs, config.val_resize) == (
        "roadsigns", 64, 9, 73
    )  # fmt: skip
    assert (config.n, config.batch_size, config.dtype, config.loader) == (
        1,
        32,
        "float32",
        "native",
    )
    assert (config.threads, config.data_nthreads) == (2, 2)
    assert config.to_network() == networks.resnet(50, 12)
    stamp(tmp_path / "imagenet", {})
    (tmp_path / "imagenet" / "train.rec").touch()
    config = complete("")
    assert config.data_root == str(tmp_path / "imagenet")
    assert (config.recipe, config.image_shape, config.num_epochs) == ("reference", 224, 90)


@pytest.mark.parametrize(
    ("machine", "flags", "dtype"),
    [
        (LAPTOP, "", "float32"),
        (WITH_BF16, "", "bfloat16"),
        (gpus((6, 1)), "", "float32"),
        (gpus((7, 0)), "", "float16"),
        (gpus((8, 0)), "", "bfloat16"),
        (gpus((9, 0), (7, 5)), "", "float16"),
        (replace(LAPTOP, gpus=(GTX,)), "", "float32"),
        (gpus((9, 0)), "--backend tensorflow --recipe reference", "bfloat16"),
        (gpus((7, 0)), "--backend tensorflow", "float32"),
        (gpus((6, 1)), "--recipe reference", "float32"),
        (gpus((9, 0)), "--recipe reference", "float16"),  # as published
        (LAPTOP, "--dtype float16 --network tiny", "float16"),
    ],
)
def test_default_precision_follows_the_hardware(machine, flags: str, dtype: str) -> None:
    config = complete(flags, machine)
    assert config.dtype == dtype
    assert config.loss_scale == ("dynamic" if dtype == "float16" else None)


@pytest.mark.parametrize(
    ("machine", "flags", "why"),
    [
        (
            gpus((7, 0)),
            "--backend tensorflow",
            "Tensor Cores for float16 only, which is for PyTorch",
        ),
        (gpus((6, 1)), "--backend tensorflow", "the GPU has no Tensor Cores for fewer bits"),
        (gpus((6, 1)), "", "the GPU has no Tensor Cores for fewer bits"),
    ],
)
def test_float32_on_a_gpu_has_the_true_reason(machine: Machine, flags: str, why: str) -> None:
    assert why in resolve(parse(*flags.split()), machine, 12).reasons["dtype"]


@pytest.mark.parametrize(
    ("gigabytes", "flags", "batch", "why"),
    [
        (16, "--dtype float16", 208, "FP16"),
        (16, "--dtype float32", 96, "FP32"),
        (16, "--dtype tf32", 96, "FP32"),
        (15, "", 208, "FP16"),  # what a GPU of 16 GB may report
        (80, "", 208, "FP16"),
        (0, "", 208, "FP16"),  # unknown
        (8, "", 104, "scaled to 8 GB and 224"),
        (8, "--dtype float32", 48, "scaled to 8 GB and 224"),
        (8, "--image-shape 128", 208, "FP16"),
        (16, "--image-shape 448", 48, "scaled to 16 GB and 448"),
        (1, "", 8, "scaled to 1 GB"),
        (8, "--macrobatch-size 208", 104, "a divisor"),
    ],
)
def test_reference_batch_is_the_published_one_unless_the_memory_is_smaller(
    gigabytes: int, flags: str, batch: int, why: str
) -> None:
    small = replace(gpus((8, 0)).gpus[0], memory=gigabytes * 2**30)
    here = replace(gpus((8, 0), (8, 0)), gpus=(gpus((8, 0)).gpus[0], small))
    found = resolve(parse("--recipe", "reference", "-n", "1", *flags.split()), here, 1000)
    assert found.config.batch_size == batch and why in found.reasons["batch_size"]


def test_remedy_on_a_gpu_with_float16_only_is_one_the_backend_takes() -> None:
    for backend, remedy in (("torch", "float16"), ("tensorflow", "float32")):
        flags, machine = f"--dtype bfloat16 --backend {backend}", gpus((7, 0))
        with pytest.raises(UserError, match=rf"use --dtype {remedy}$"):
            complete(flags, machine)
        complete(flags.replace("bfloat16", remedy), machine)


def test_the_published_recipe_on_a_gpu_takes_dali_if_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, reference = gpus((8, 0)), "--recipe reference"
    monkeypatch.setattr(installed, "has", lambda module: True)
    for flags, machine, loader in (
        (reference, here, "dali"),
        (reference, LAPTOP, "native"),
        ("--recipe roadsigns", here, "native"),
        (f"{reference} --override augment=mine.py:crop", here, "native"),
    ):
        assert complete(flags, machine).loader == loader, flags
    monkeypatch.setattr(installed, "has", lambda module: False)
    assert complete(reference, here).loader == "native"
    with pytest.raises(UserError, match="^--loader dali: DALI is not installed here: `make setup`"):
        complete(f"{reference} --loader dali", here)


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--recipe roadsigns -e 9", {"warmup_epochs": 0.5, "lr_step_epochs": (3, 6, 8)}),
        ("--recipe roadsigns -e 9 --lr-step-epochs 4", {"lr_step_epochs": (4,)}),
        ("--recipe reference -e 90", {"warmup_epochs": 5, "lr_step_epochs": (30, 60, 80),
                                      "optimizer": "sgd", "bn_decay": True, "zero_gamma": False}),
        ("--recipe reference -e 36 --warmup-epochs 5", {"warmup_epochs": 5,
                                                        "lr_step_epochs": (12, 24, 32)}),
        ("--preset goyal2017 -n 1 -e 9", {"warmup_epochs": 0.5, "lr_step_epochs": (3, 6, 8)}),
        ("--preset goyal2017 -n 1", {"zero_gamma": True, "bn_decay": False}),
        ("--preset goyal2017 -n 1 --set zero_gamma=false --set bn_decay=true",
         {"zero_gamma": False, "bn_decay": True}),
        ("--recipe reference --optimizer sgd", {"optimizer": "sgd", "crop_area": 0.05}),
        ("--recipe roadsigns --set crop_area=0.2", {"crop_area": 0.2}),
        ("--recipe reference --lr-schedule cosine", {"lr_step_epochs": ()}),
        ("-n 2 --comm ddp", {"threads": 1, "launcher": "torchrun"}),
        ("-b 1 --image-shape 32 --test-io", {"batch_size": 1}),
    ],
)  # fmt: skip
def test_the_recipe_s_numbers(flags: str, expected: dict[str, Any]) -> None:
    config = complete(flags)
    assert {name: getattr(config, name) for name in expected} == expected


# --- profile ci -----------------------------------------------------------------------------------


def test_profile_ci_caps_the_values_and_lists_each() -> None:
    flags = "-b 208 -e 90 --macrobatch-size 832"
    resolved = resolve(parse(*flags.split(), "--profile", "ci", "--dtype", "tf32"), LAPTOP, 1000)
    config = resolved.config
    assert (config.network, config.image_shape, config.val_resize, config.dtype) == (
        "tiny", 32, 37, "float32"
    )  # fmt: skip
    assert (config.batch_size, config.benchmark_iters, config.n, config.num_epochs) == (4, 2, 1, 2)
    assert (config.macrobatch_size, config.effective_batch_size) == (
        8,
        8,
    )  # two iterations, one update
    assert "profile ci: --batch-size 208 capped to 4" in resolved.caps
    before = complete(flags, classes=1000)
    capped = "\n".join(resolved.caps)
    for name in set(FLAGS) - {"profile", "dtype"}:
        if getattr(before, name) != getattr(config, name):
            assert f" {flag_name(name)} " in capped, name
    twice = resolve(config.to_dict(), LAPTOP, 12)
    assert (twice.config, twice.caps) == (config, ())


# --- contradictions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "flag", "remedy"),
    [
        ("--dtype float16", "--dtype float16", "--dtype bfloat16"),
        ("--dtype tf32", "--dtype tf32", "--dtype float32"),
        ("--dtype float16 --network tiny --backend tensorflow", "--dtype float16", "or float32"),
        ("-b 16 --macrobatch-size 40", "--macrobatch-size 40", "use a multiple"),
        ("-b 16 --macrobatch-size 8", "--macrobatch-size 8", "use a multiple"),
        ("-b 8 --macrobatch-size 64 --set cuda_graph=true", "cuda_graph", "leave one of them out"),
        ("--load-epoch 3", "--load-epoch", "--model-prefix"),
        ("--resume", "--resume", "--model-prefix"),
        ("--resume --load-epoch 3 --model-prefix m", "--load-epoch", "one of them"),
        ("--init-from a --load-epoch 3 --model-prefix m", "--init-from", "one of them"),
        ("--init-from a --set step=100", "--init-from", "leave one of them out"),
        ("--only-inference --no-val", "--no-val", "leave one of them out"),
        ("--network tiny --num-layers 50", "--num-layers", "leave one of them out"),
        ("--set step=100 --model-prefix m", "--model-prefix", "leave one of them out"),
        ("--set val_resize=100 --recipe reference", "--set val_resize=100", "use 224 or more"),
        (
            "--image-shape 40 --set val_resize=39 --profile ci",
            "--set val_resize=39",
            "use 40 or more",
        ),
        ("-b 1 --image-shape 32", "--batch-size 1", "use -b 2 or more"),
        ("-b 1 --profile ci", "--batch-size 1", "use -b 2 or more"),
        ("--lr-schedule cosine --lr-step-epochs 30", "--lr-step-epochs", "--lr-schedule step"),
        ("-n 2 --comm ddp --launcher mpirun", "--comm ddp --launcher mpirun", "--comm horovod"),
        ("--override predictor=a.py:f --backend tensorflow", "predictor", "use --backend torch"),
        ("--override predictor=a.py:f --compile", "predictor", "leave one of them out"),
        (
            "--only-inference --engine compile --override predictor=a.py:f",
            "predictor",
            "leave one of them out",
        ),
        ("--override speed=a.py:f", "--override speed=a.py:f", "there are schedule, shard"),
        ("--override schedule=a.py", "--override schedule=a.py", "NAME=FILE:FUNCTION"),
    ],
)
def test_contradictions_name_the_flag_and_the_remedy(argv: str, flag: str, remedy: str) -> None:
    with pytest.raises(UserError) as error:
        complete(argv)
    message = str(error.value)
    assert flag in message and remedy in message and "\n" not in message


@pytest.mark.parametrize(
    ("flag", "texts"),
    [
        ("--num-epochs", "0 -1 1.5 many"),
        ("--load-epoch", "-1"),
        ("--lr", "-0.1 nan inf 1e31 fast"),
        ("--image-shape", "16 3,224,256 1,224,224 224,224"),
        ("--lr-step-epochs", "60,30 -1,30 nan 30,inf"),
        ("--label-smoothing", "1 -0.1 nan"),
        ("--set", "step=0 step=-5 step=nan step=inf step=paced:5 keep bn_decay=often crop_area=0"),
        (
            "--set",
            "loss_scale=often loss_scale=0.5 loss_scale=nan loss_scale=33554432"
            " loss_scale=dynamic:0 loss_scale=dynamic:8:0 loss_scale=dynamic:8:2:1"
            " loss_scale=dynamic:1:99999999999",
        ),
        ("--hosts", "a:0 a:1,a:1 :2"),
    ],
)
def test_impossible_values_are_refused(flag: str, texts: str) -> None:
    for text in texts.split():
        with pytest.raises(UserError, match=f"^{flag} .*must be"):
            parse(f"{flag}={text}")


# --- one declaration per flag ---------------------------------------------------------------------


def test_every_name_is_declared_once() -> None:
    names = [name for flag in FLAGS.values() for name in f"{flag.names} {flag.also}".split()]
    assert len(names) == len(set(names))


def test_the_choices_are_the_networks_own() -> None:
    """They are listed a second time: the help text must not import NumPy."""
    assert FLAGS["num_layers"].choices == tuple(networks.STAGES)
    assert FLAGS["resnet_version"].choices == networks.VERSIONS


def test_a_recipe_holds_values_that_its_flags_take() -> None:
    for recipe in RECIPES.values():
        values = {name: value for name, value in vars(recipe).items() if name in FLAGS}
        assert validated(values) == values
        assert len(values) >= 12


def test_values_of_a_notebook_are_checked_too() -> None:
    with pytest.raises(UserError, match="--batch-size '8' must be a whole number"):
        resolve({"batch_size": "8"}, LAPTOP, 12)
