"""The axes of a run: what is given stays, what is open is filled in once and says why."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from rn50 import autoconfig as defaults
from rn50 import checks, description
from rn50.autoconfig import resolve
from rn50.benchmark import command as benchmark
from rn50.parser import experiment_parser, parse_experiment
from rn50.prepare import prepare
from rn50.presets import PRESETS
from rn50lib import config as configs
from rn50lib import resnet as networks
from rn50lib.config import Experiment, flags_of, kinds
from rn50lib.errors import UserError
from rn50lib.hardware import Machine
from rn50lib.hardware.nvidia import Gpu
from tests.conftest import ROOT
from tests.support import LAPTOP

WITH_BF16 = replace(LAPTOP, bfloat16="avx512_bf16")


def gpu(capability: tuple[int, int]) -> Gpu:
    return Gpu(0, "a GPU", 16 * 2**30, capability, "550.54", "GPU-0")


def machine_with(*gpus: Gpu) -> Machine:
    return replace(LAPTOP, cores=40, gpus=gpus)


def parse(*argv: str) -> Experiment:
    return parse_experiment(experiment_parser("run"), list(argv))[0]


@pytest.fixture(autouse=True)
def no_imagenet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The same defaults on a machine that has ImageNet mounted."""
    monkeypatch.setattr(defaults, "IMAGENET_ROOT", str(tmp_path / "imagenet"))
    monkeypatch.setenv("RN50_DATA", str(tmp_path / "data"))


# --- flags <-> experiment -------------------------------------------------------------------------

words = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=1, max_size=12)
words = words.filter(str.strip)  # U+0085 and U+00A0 are white space
rates = st.floats(0, 1e9)
steps = st.lists(rates, max_size=4).map(lambda values: tuple(sorted(values)))
some = {int: st.integers(1, 2**40), float: rates, str: words, bool: st.booleans()}


def values_for(name: str) -> st.SearchStrategy[Any]:
    """Values that the flag of a field takes."""
    meta = Experiment.__dataclass_fields__[name].metadata
    if meta["choices"]:
        return st.sampled_from(meta["choices"])
    by_kind = {
        None: st.booleans(),
        bool: st.booleans(),
        kinds.share: st.floats(0, 1, exclude_max=True),
        list: st.lists(words, max_size=3).map(tuple),
        kinds.epoch_list: steps,
        kinds.degrees: st.floats(0, 180),
        kinds.pace: st.floats(1e-3, 1e9),
        kinds.not_negative: rates,
        kinds.seed: st.integers(0, 2**32 - 1),
        kinds.image_shape: st.integers(32, 4096),
        kinds.host_list: st.sampled_from(["a:4,b:4", "localhost:2", "c"]),
        kinds.loss_scale: st.sampled_from(["dynamic", "dynamic:8:2", "128", "1e3"]),
        kinds.not_empty: words,
    }
    return by_kind.get(meta["kind"], st.integers(1, 2**40))


experiments_asked = st.builds(
    Experiment,
    **{
        f.name: values_for(f.name) | st.just(f.default)  # each flag given or not
        for f in fields(Experiment)
    },
)


@given(experiments_asked)
@example(Experiment(data_root="-x", model_prefix="--help", override=("-a", "b")))
@example(Experiment(lr_step_epochs=(), lr=0.1 + 0.2, report="a b"))
def test_the_flags_of_an_experiment_give_it_again(asked: Experiment) -> None:
    again, _ = parse_experiment(experiment_parser("run"), flags_of(asked))
    assert again == asked


def test_nothing_given_needs_no_flags() -> None:
    assert flags_of(Experiment()) == []
    assert parse() == Experiment()


def test_the_reference_s_forms_of_flags() -> None:
    asked = parse(
        "-n", "1", "-b", "96", "-e", "90", "-l", "0.1", "--image-shape", "3,224,224",
        "--lr-step-epochs", "30,60,80", "--warmup-epochs", "5", "--mom", ".9", "--wd", "1e-4",
    )  # fmt: skip
    assert (asked.n, asked.batch_size, asked.num_epochs, asked.lr) == (1, 96, 90, 0.1)
    assert (asked.image_shape, asked.lr_step_epochs) == (224, (30, 60, 80))
    assert (asked.mom, asked.wd, asked.warmup_epochs) == (0.9, 1e-4, 5)
    assert parse("--no-dali").loader == "native"
    assert parse("--step", "paced:1442.6").step == 1442.6
    assert parse("--lr-step-epochs", "").lr_step_epochs == ()
    assert parse("--override", "a=b:c", "--override", "d=e:f").override == ("a=b:c", "d=e:f")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_made_of_flags_that_exist(name: str) -> None:
    verb = PRESETS[name].command
    if verb == "benchmark":  # it has lists, and flags of its own
        _, asked = benchmark.parse(["--preset", name, "-o", "out.json"])
    else:
        asked, _ = parse_experiment(experiment_parser(verb), ["--preset", name])
    assert asked.given()


@pytest.mark.parametrize("name", PRESETS)
def test_the_file_of_a_preset_is_that_preset(name: str) -> None:
    verb, file = PRESETS[name].command, str(ROOT / "configs" / f"{name}.yaml")
    if verb == "benchmark":
        last = ["-o", "out.json"]
        (own, asked), (own_file, asked_file) = (
            benchmark.parse(["--preset", name, *last]), benchmark.parse(["--config", file, *last])
        )  # fmt: skip
        for field in ("workers", "batches", "warmup"):
            assert getattr(own_file, field) == getattr(own, field), field
    else:
        parser = experiment_parser(verb)
        asked, asked_file = (
            parse_experiment(parser, [flag, value])[0]
            for flag, value in (("--config", file), ("--preset", name))
        )
    assert asked_file == asked


def test_every_file_is_that_of_a_preset() -> None:
    assert {file.stem for file in (ROOT / "configs").iterdir()} == set(PRESETS)


def test_a_flag_beside_a_file_of_a_sweep_wins() -> None:
    file = str(ROOT / "configs" / "BENCHMARK_FP16.yaml")
    own, asked = benchmark.parse(["--config", file, "-b", "8", "--dtype", "float32", "-o", "x"])
    assert (own.workers, own.batches, own.warmup) == ([1, 4, 8], [8], 1)
    assert asked.dtype == "float32"


def test_a_flag_beside_a_preset_wins() -> None:
    asked = parse("-b", "16", "--preset", "RN50_FP32_1GPU")
    assert (asked.batch_size, asked.dtype, asked.model_prefix) == (16, "float32", "model")


# --- filling in -----------------------------------------------------------------------------------


@pytest.mark.parametrize("machine", [LAPTOP, WITH_BF16, machine_with(gpu((8, 0)))])
@pytest.mark.parametrize("recipe", [None, "reference", "roadsigns"])
def test_nothing_stays_open_and_every_choice_has_its_reason(
    machine: Machine, recipe: str | None
) -> None:
    resolved = resolve(Experiment(recipe=recipe), machine, num_classes=12)
    for name, kind in Experiment.__annotations__.items():
        if "None" in kind or getattr(Experiment(), name) is not None:
            continue  # it may be left out, or has a value of its own
        assert getattr(resolved.experiment, name) is not None, name
        assert resolved.reasons[name], name
    assert resolved.experiment.profile in ("cpu", "gpu")


@given(experiments_asked)
def test_a_value_that_was_given_is_never_changed(asked: Experiment) -> None:
    assume(asked.profile != "ci")
    for machine in (LAPTOP, machine_with(gpu((7, 0)))):
        try:
            resolved = resolve(asked, machine, num_classes=12)
        except UserError as error:
            assert "\n" not in str(error)
            continue
        for name, value in asked.given().items():
            if (name, value) != ("profile", "auto"):
                assert getattr(resolved.experiment, name) == value, name
                assert resolved.reasons[name] == "given", name


@pytest.mark.parametrize(
    "flags", ["--only-inference", "--step paced:9", "--test-io", "--image-shape 33"]
)
def test_one_image_per_batch_is_fine_if_no_batch_norm_trains_on_one_value(flags: str) -> None:
    asked = parse("-b", "1", "--image-shape", "32", *flags.split())
    assert resolve(asked, LAPTOP, 12).experiment.batch_size == 1


def stamp(folder: Path, content: dict[str, Any]) -> Path:
    folder.mkdir(parents=True)
    (folder / ".complete").write_text(json.dumps(content))
    return folder


def test_the_recipe_of_the_built_in_data_is_for_that_data_alone(tmp_path: Path) -> None:
    """The generator's stamp decides, not a folder's name."""

    def recipe(root: Path) -> str:
        return resolve(Experiment(data_root=str(root)), LAPTOP, 12).experiment.recipe

    drawn = stamp(tmp_path / "x", {"train": 48, "val": 24, "seed": 0, "version": 3})
    packed = stamp(drawn / "records", {"images": {"train": 48, "val": 24}, "made": "today"})
    assert recipe(drawn) == recipe(packed) == "roadsigns"
    (tmp_path / "link").symlink_to(packed)
    assert recipe(tmp_path / "link") == "roadsigns"
    mine = drawn / "gtsrb"
    mine.mkdir()
    others = stamp(tmp_path / "roadsigns", {"classes": 1000})
    assert recipe(mine) == recipe(others) == "reference"
    (others / "gtsrb").mkdir()
    assert recipe(others / "gtsrb") == recipe(tmp_path / "roadsigns-ci") == "reference"


def test_a_bare_run_on_a_laptop(tmp_path: Path) -> None:
    done = resolve(Experiment(), LAPTOP, num_classes=12).experiment
    assert done.data_root == str(tmp_path / "data" / "roadsigns")
    assert (done.recipe, done.image_shape, done.num_epochs, done.val_resize) == (
        "roadsigns", 64, 9, 73
    )  # fmt: skip
    assert (done.n, done.batch_size, done.dtype, done.loader) == (1, 32, "float32", "native")
    assert (done.threads, done.data_nthreads, done.num_classes) == (2, 2, 12)
    assert (done.network, done.num_layers, done.resnet_version) == ("resnet", 50, "v1.5")
    assert done.to_network() == networks.resnet(50, 12)


def test_imagenet_is_taken_where_the_reference_mounts_it(tmp_path: Path) -> None:
    (tmp_path / "imagenet").mkdir()
    (tmp_path / "imagenet" / "train.rec").touch()
    done = resolve(Experiment(), LAPTOP, num_classes=1000).experiment
    assert done.data_root == str(tmp_path / "imagenet")
    assert (done.recipe, done.image_shape, done.num_epochs) == ("reference", 224, 90)


@pytest.mark.parametrize(
    ("machine", "dtype"),
    [
        (LAPTOP, "float32"),
        (WITH_BF16, "bfloat16"),
        (machine_with(gpu((6, 1))), "float32"),
        (machine_with(gpu((7, 0))), "float16"),
        (machine_with(gpu((8, 0))), "bfloat16"),
        (machine_with(gpu((9, 0)), gpu((7, 5))), "float16"),
    ],
)
def test_precision_is_what_the_hardware_computes_in(machine: Machine, dtype: str) -> None:
    resolved = resolve(Experiment(), machine, num_classes=12)
    assert resolved.experiment.dtype == dtype
    assert "bfloat16" in resolved.reasons["dtype"]
    assert resolved.experiment.loss_scale == ("dynamic" if dtype == "float16" else None)


@pytest.mark.parametrize(
    ("capability", "dtype"), [((6, 1), "float32"), ((7, 0), "float16"), ((9, 0), "float16")]
)
def test_the_published_recipe_takes_the_published_precision(
    capability: tuple[int, int], dtype: str
) -> None:
    done = resolve(Experiment(recipe="reference"), machine_with(gpu(capability)), 1000).experiment
    assert (done.dtype, done.batch_size) == (dtype, 208)


def test_the_published_recipe_on_a_gpu_takes_dali_where_it_can(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = machine_with(gpu((8, 0)))
    monkeypatch.setattr(checks, "has_dali", lambda: True)
    reference = Experiment(recipe="reference")
    mine = replace(reference, override=("augment=mine.py:crop",))
    for asked, machine, loader in (
        (reference, here, "dali"),
        (reference, LAPTOP, "native"),
        (Experiment(recipe="roadsigns"), here, "native"),
        (mine, here, "native"),  # its own threads call no Python function
    ):
        assert resolve(asked, machine, 1000).experiment.loader == loader, asked
    monkeypatch.setattr(checks, "has_dali", lambda: False)
    resolved = resolve(reference, here, 1000)
    assert resolved.experiment.loader == "native"
    assert resolved.reasons["loader"] == "DALI is not installed here"
    with pytest.raises(UserError, match="^--loader dali: DALI is not installed here: `make setup`"):
        resolve(replace(reference, loader="dali"), here, 1000)


def test_fewer_epochs_shorten_the_roadsigns_schedule_but_not_the_reference_s() -> None:
    short = resolve(Experiment(num_epochs=9, recipe="roadsigns"), LAPTOP, 12).experiment
    assert (short.warmup_epochs, short.lr_step_epochs) == (0.5, (3, 6, 8))
    given_steps = Experiment(num_epochs=9, recipe="roadsigns", lr_step_epochs=(4,))
    assert resolve(given_steps, LAPTOP, 12).experiment.lr_step_epochs == (4,)
    published = resolve(Experiment(num_epochs=9, recipe="reference"), LAPTOP, 12).experiment
    assert (published.warmup_epochs, published.lr_step_epochs) == (5, (30, 60, 80))


def test_the_recipe_of_a_run_holds_the_run_s_own_numbers() -> None:
    asked = Experiment(recipe="reference", lr=0.2, mom=0.8, wd=0.0, batch_size=16, num_epochs=3)
    made = resolve(asked, LAPTOP, 12).experiment.to_recipe()
    assert (made.lr, made.momentum, made.weight_decay, made.batch_size) == (0.2, 0.8, 0.0, 16)
    assert (made.epochs, made.warmup_epochs) == (3, 5)


def test_switches_that_a_recipe_has_on_can_be_switched_off() -> None:
    asked = parse("--recipe", "goyal2017", "--no-zero-gamma", "--bn-decay")
    made = resolve(asked, LAPTOP, 12).experiment.to_recipe()
    assert (made.zero_gamma, made.bn_decay) == (False, True)
    whole = resolve(parse("--recipe", "goyal2017"), LAPTOP, 12).experiment
    assert (whole.zero_gamma, whole.bn_decay) == (True, False)
    assert resolve(parse(*flags_of(whole)), LAPTOP, 12).experiment == whole


def test_the_published_recipe_has_none_of_the_large_batch_s_practice() -> None:
    done = resolve(parse("--recipe", "reference"), LAPTOP, 12).experiment
    assert (done.optimizer, done.lr_schedule, done.lr_step_epochs) == ("sgd", "step", (30, 60, 80))
    assert (done.label_smoothing, done.zero_gamma, done.bn_decay) == (0.0, False, True)


def test_lars_leaves_gamma_beta_and_bias_out_of_decay_unless_told() -> None:
    lars = ("--recipe", "reference", "--optimizer", "lars", "--lr", "2")
    resolved = resolve(parse(*lars), LAPTOP, 12)
    assert resolved.experiment.bn_decay is False
    assert resolved.reasons["bn_decay"] == "LARS leaves them out, as You et al. and MLPerf do"
    assert resolve(parse(*lars, "--bn-decay"), LAPTOP, 12).experiment.bn_decay is True


def test_a_learner_s_decay_groups_decides_alone() -> None:
    asked = parse("--recipe", "goyal2017", "--override", "decay_groups=mine.py:groups")
    resolved = resolve(asked, LAPTOP, 12)
    assert resolved.experiment.bn_decay is True
    assert resolved.reasons["bn_decay"] == "your decay_groups decides"
    again = resolve(parse(*flags_of(resolved.experiment)), LAPTOP, 12)  # as a worker is told
    assert again.experiment == resolved.experiment


def test_a_cosine_has_no_steps() -> None:
    done = resolve(parse("--recipe", "reference", "--lr-schedule", "cosine"), LAPTOP, 12).experiment
    assert done.lr_step_epochs == ()
    assert description.arithmetic(done).endswith("= 0.0125, cosine to 0 at epoch 90")
    assert description.schedule_remark(done) is None


def test_classes_that_nobody_knows_are_asked_for() -> None:
    with pytest.raises(UserError, match="--num-classes"):
        resolve(Experiment(), LAPTOP, num_classes=None)


# --- profile ci -----------------------------------------------------------------------------------


def test_profile_ci_caps_the_resolved_values_and_says_each() -> None:
    asked = Experiment(
        profile="ci", batch_size=208, dtype="tf32", num_epochs=90, macrobatch_size=832
    )
    resolved = resolve(asked, LAPTOP, num_classes=1000)
    done = resolved.experiment
    assert (done.network, done.image_shape, done.val_resize, done.dtype) == (
        "tiny", 32, 37, "float32"
    )  # fmt: skip
    assert (done.batch_size, done.benchmark_iters, done.n) == (4, 2, 1)
    assert done.num_epochs <= 2
    assert done.to_network().name == "resnet-tiny"
    assert "profile ci: --batch-size 208 capped to 4" in resolved.caps
    assert "profile ci: --dtype tf32 capped to float32" in resolved.caps
    assert "profile ci: --num-layers 50 left out" in resolved.caps
    assert (done.macrobatch_size, done.update_batch) == (8, 8)  # two iterations, one update
    before = resolve(replace(asked, profile="auto", dtype=None), LAPTOP, 1000).experiment
    capped = {line.split()[2] for line in resolved.caps}
    for f in fields(Experiment):
        if f.name not in ("profile", "dtype") and getattr(before, f.name) != getattr(done, f.name):
            assert configs.flag_name(f.name) in capped, f.name


def test_profile_ci_leaves_what_is_small_enough() -> None:
    asked = Experiment(profile="ci", batch_size=2, num_epochs=1, benchmark_iters=1)
    resolved = resolve(asked, LAPTOP, num_classes=12)
    done = resolved.experiment
    assert (done.batch_size, done.num_epochs, done.benchmark_iters) == (2, 1, 1)
    assert not any(
        flag in line for line in resolved.caps for flag in ("--batch-size", "--num-epochs")
    )


def test_capping_twice_changes_nothing() -> None:
    """A worker is given the capped values and the profile, and caps them again."""
    once = resolve(Experiment(profile="ci"), LAPTOP, 12).experiment
    twice = resolve(parse(*flags_of(once)), LAPTOP, 12)
    assert (twice.experiment, twice.caps) == (once, ())


# --- contradictions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "flag", "remedy"),
    [
        ("--dtype float16", "--dtype float16", "--dtype bfloat16"),
        ("--dtype tf32", "--dtype tf32", "--dtype float32"),
        ("-b 16 --macrobatch-size 40", "--macrobatch-size 40", "32 or 48"),
        ("-b 16 --macrobatch-size 8", "--macrobatch-size 8", "use 16"),
        ("--override loss_scale_update=a.py:f", "loss_scale_update", "--loss-scale dynamic"),
        (
            "--override loss_scale_update=a.py:f --loss-scale 8",
            "loss_scale_update",
            "--loss-scale dynamic",
        ),
        ("--profile gpu", "--profile gpu", "--profile cpu"),
        ("--load-epoch 3", "--load-epoch", "--model-prefix"),
        ("--resume", "--resume", "--model-prefix"),
        ("--resume --load-epoch 3 --model-prefix m", "--load-epoch", "one of them"),
        ("--init-from a --load-epoch 3 --model-prefix m", "--init-from", "give one of them"),
        ("--init-from a --step paced:100", "--init-from", "leave one of them out"),
        ("--freeze-until stage2", "--freeze-until stage2", "--init-from"),
        ("--only-inference --no-val", "--no-val", "nothing to do"),
        ("--network tiny --num-layers 50", "--num-layers", "leave one out"),
        ("--step paced:100 --model-prefix m", "--model-prefix", "leave out"),
        ("--val-resize 200 --image-shape 224", "--val-resize 200", "use 224 or more"),
        ("--val-resize 100 --recipe reference", "--val-resize 100", "use 224 or more"),
        ("--image-shape 40 --val-resize 39 --profile ci", "--val-resize 39", "use 40 or more"),
        ("-b 1 --image-shape 32", "-b 1", "use -b 2 or more"),
        ("-b 1 --network tiny --image-shape 32", "-b 1", "use -b 2 or more"),
        ("-b 1 --profile ci", "-b 1", "use -b 2 or more"),
        (
            "--lr-schedule cosine --lr-step-epochs 30,60",
            "--lr-step-epochs",
            "leave it out, or give --lr-schedule step",
        ),
        ("--recipe nvidia_cosine --lr-step-epochs 30", "--lr-step-epochs", "--lr-schedule step"),
        ("--recipe nvidia_cosine --lr-schedule step", "--lr-schedule step", "--lr-step-epochs"),
        ("--recipe reference --optimizer lars", "--optimizer lars", "--recipe mlperf_lars_8k"),
        ("--recipe mlperf_lars_8k --optimizer sgd", "--optimizer sgd", "give --lr too"),
        ("--no-bn-decay --override decay_groups=a.py:f", "--no-bn-decay", "leave one out"),
    ],
)
def test_contradictions_name_the_flag_and_the_remedy(argv: str, flag: str, remedy: str) -> None:
    with pytest.raises(UserError) as error:
        resolve(parse(*argv.split()), LAPTOP, num_classes=12)
    message = str(error.value)
    assert flag in message and remedy in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("dtype", "capability", "remedy"),
    [
        ("float16", (6, 1), "--dtype float32"),
        ("bfloat16", (7, 5), "--dtype float16"),
        ("tf32", (7, 0), "--dtype float16"),
        ("tf32", (6, 0), "--dtype float32"),
    ],
)
def test_a_precision_that_the_gpu_lacks(
    dtype: str, capability: tuple[int, int], remedy: str
) -> None:
    major, minor = capability
    with pytest.raises(UserError, match=f"--dtype {dtype} needs .*{major}.{minor}: use {remedy}$"):
        resolve(Experiment(dtype=dtype), machine_with(gpu((9, 0)), gpu(capability)), 12)


def test_float16_on_a_processor_is_for_the_tiny_network() -> None:
    done = resolve(Experiment(dtype="float16", network="tiny"), LAPTOP, 12).experiment
    assert (done.dtype, done.loss_scale) == ("float16", "dynamic")


def test_an_update_over_several_batches() -> None:
    asked = Experiment(recipe="reference", batch_size=32, macrobatch_size=128, n=2, comm="ddp")
    done = resolve(asked, LAPTOP, 12).experiment
    assert (done.micro_batches, done.global_batch, done.update_batch) == (4, 64, 256)
    assert description.arithmetic(done) == (
        "global batch 2 x 32 x 4 batches per update = 256; learning rate 0.1 x 256 / 256 = 0.1"
    )


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("0", kinds.positive),
        ("-1", kinds.natural),
        ("-0.1", kinds.not_negative),
        ("nan", kinds.not_negative),
        ("inf", kinds.not_negative),
        ("16", kinds.image_shape),
        ("3,224,256", kinds.image_shape),
        ("1,224,224", kinds.image_shape),
        ("224,224", kinds.image_shape),
        ("60,30", kinds.epoch_list),
        ("-1,30", kinds.epoch_list),
        ("nan", kinds.epoch_list),
        ("30,inf", kinds.epoch_list),
        ("1", kinds.share),
        ("-0.1", kinds.share),
        ("nan", kinds.share),
        ("100", kinds.pace),
        ("paced:0", kinds.pace),
        ("paced:-5", kinds.pace),
        ("paced:nan", kinds.pace),
        ("paced:inf", kinds.pace),
        ("waited:5", kinds.pace),
        ("often", kinds.loss_scale),
        ("0.5", kinds.loss_scale),
        ("nan", kinds.loss_scale),
        ("33554432", kinds.loss_scale),
        ("dynamic:0", kinds.loss_scale),
        ("dynamic:8:0", kinds.loss_scale),
        ("dynamic:8:2:1", kinds.loss_scale),
    ],
)
def test_impossible_values_are_refused(text: str, kind: Any) -> None:
    with pytest.raises(ValueError, match="must be"):
        kind(text)


# --- what is said about a run ---------------------------------------------------------------------


def test_the_arithmetic_of_batch_and_learning_rate() -> None:
    done = resolve(Experiment(recipe="reference", batch_size=64, lr=0.1), LAPTOP, 12).experiment
    assert description.arithmetic(done) == (
        "global batch 1 x 64 = 64; learning rate 0.1 x 64 / 256 = 0.025"
    )


@pytest.mark.parametrize(
    ("epochs", "said"), [(4, "inside its warm-up"), (30, "before its first decay"), (31, None)]
)
def test_a_run_that_ends_early_says_so(epochs: int, said: str | None) -> None:
    done = resolve(Experiment(recipe="reference", num_epochs=epochs), LAPTOP, 12).experiment
    remark = description.schedule_remark(done)
    assert (remark is None) if said is None else (remark is not None and said in remark)


@pytest.mark.parametrize(
    ("asked", "classes", "reason"),
    [
        (Experiment(loader="synthetic"), 1000, "synthetic images have no data set"),
        (Experiment(loader="synthetic", num_classes=7), 7, "given"),
        (Experiment(data_root="/nowhere/imagenet"), 1000, "there is no /nowhere/imagenet"),
        (Experiment(data_root="/nowhere/roadsigns"), 1000, "there is no /nowhere/roadsigns"),
        (Experiment(), 12, "the built-in road signs'"),
    ],
)
def test_classes_that_nobody_counted_are_not_said_to_be(asked, classes, reason) -> None:
    done = prepare(asked, make_data=False, here=LAPTOP)
    assert done.experiment.num_classes == classes
    assert reason in done.reasons["num_classes"]
