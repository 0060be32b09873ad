"""The published recipe, its learning rate and its crops, against numbers worked out by hand."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rn50.parser import PRESETS, read_file
from rn50lib import recipe as recipes
from rn50lib.recipe import REFERENCE, ROADSIGNS, Augmentation, learning_rate
from tests.support import full


def test_the_reference_is_the_published_recipe() -> None:
    r = REFERENCE
    assert (r.num_epochs, r.lr, r.lr_batch, r.batch_size, r.image_shape) == (90, 0.1, 256, 208, 224)
    assert (r.mom, r.wd, r.warmup_epochs) == (0.9, 1e-4, 5)
    assert (r.lr_step_epochs, r.lr_factor) == ((30, 60, 80), 0.1)
    crops = Augmentation(area=(0.05, 1.0), aspect=(3 / 4, 4 / 3), flip=0.5)
    assert full().augmentation == Augmentation() == crops
    assert (recipes.BN_MOMENTUM, recipes.BN_EPS) == (0.9, 1e-5)
    assert recipes.MEAN == pytest.approx((123.675, 116.28, 103.53))
    assert recipes.STD == pytest.approx((58.395, 57.12, 57.375))


@pytest.mark.parametrize(
    ("epoch", "rate"),
    [(0, 0), (1.25, 0.025), (2.5, 0.05), (4.999, 0.09998), (5, 0.1), (29.999, 0.1), (30, 0.01),
     (59.999, 0.01), (60, 0.001), (79.999, 0.001), (80, 1e-4), (90, 1e-4)],
)  # fmt: skip
def test_learning_rate_at_a_global_batch_of_256(epoch: float, rate: float) -> None:
    assert learning_rate(epoch, 256) == pytest.approx(rate, rel=1e-12)


def test_learning_rate_of_eight_gpus_at_208() -> None:
    assert learning_rate(5, 8 * 208) == pytest.approx(0.65)
    assert learning_rate(85, 8 * 208) == pytest.approx(0.00065)


def test_without_a_warm_up_the_first_step_has_the_full_rate() -> None:
    from dataclasses import replace

    assert learning_rate(0, 256, replace(REFERENCE, warmup_epochs=0)) == 0.1


@given(st.floats(0, 90), st.integers(1, 64))
def test_the_rate_scales_linearly_with_the_global_batch(progress: float, workers: int) -> None:
    one = learning_rate(progress, 32)
    assert learning_rate(progress, 32 * workers) == pytest.approx(workers * one)


def test_the_short_recipe_keeps_the_shape_of_the_schedule() -> None:
    assert (ROADSIGNS.num_epochs, ROADSIGNS.warmup_epochs) == (9, 0.5)
    assert ROADSIGNS.lr_step_epochs == (3, 6, 8)
    assert (ROADSIGNS.image_shape, ROADSIGNS.batch_size) == (64, 32)
    shorter = recipes.rescaled(ROADSIGNS, 18)
    assert (shorter.num_epochs, shorter.warmup_epochs, shorter.lr_step_epochs) == (
        18,
        1,
        (6, 12, 16),
    )
    assert shorter.lr == ROADSIGNS.lr


@pytest.mark.parametrize(
    ("schedule", "epoch", "part"),
    [
        ("cosine", 0, 0), ("cosine", 2.5, 0.5), ("cosine", 5, 1), ("cosine", 26.25, 0.8535533906),
        ("cosine", 47.5, 0.5), ("cosine", 68.75, 0.1464466094), ("cosine", 90, 0),
    ],
)  # fmt: skip
def test_a_curve_after_5_of_90_epochs(schedule: str, epoch: float, part: float) -> None:
    """47.5 is half-way between the warm-up's end and the run's."""
    from dataclasses import replace

    recipe = replace(REFERENCE, lr_schedule=schedule, lr_step_epochs=())
    assert learning_rate(epoch, 1024, recipe) == pytest.approx(0.4 * part, abs=1e-10)


@pytest.mark.parametrize(
    ("preset", "batch", "peak"), [("goyal2017", 8192, 3.2), ("nvidia_cosine", 2048, 2.048)]
)
def test_the_large_batch_presets_have_the_rates_that_were_published(
    preset: str, batch: int, peak: float
) -> None:
    config = full(**read_file(PRESETS[preset]), hosts="a:256")
    assert config.global_batch == batch
    assert learning_rate(config.warmup_epochs, batch, config) == pytest.approx(peak)


def test_validation_resizes_by_256_to_224() -> None:
    assert [recipes.val_resize(size) for size in (224, 64, 32, 299)] == [256, 73, 37, 342]


def test_crops_of_a_large_image_have_the_recipe_s_areas_and_aspects() -> None:
    drawn = [recipes.augment(seed, 4000, 4000) for seed in range(4000)]
    boxes = [box for box, _ in drawn]
    assert sum(mirror for _, mirror in drawn) / 4000 == pytest.approx(0.5, abs=0.03)
    assert drawn[0] == ((13, 41, 3977, 3428), True)  # as ever: a seed repeats a run
    areas = [w * h / 4000**2 for _, _, w, h in boxes]
    aspects = [w / h for _, _, w, h in boxes]
    assert 0.0499 < min(areas) < 0.06 and 0.9 < max(areas) <= 1
    assert 0.7495 < min(aspects) < 0.76 and 1.32 < max(aspects) < 1.3345
    # 3/4 is as likely as 4/3: half of the crops are upright, and the logarithm is uniform
    assert sum(a < 1 for a in aspects) / len(aspects) == pytest.approx(0.5, abs=0.03)
    spread = statistics.pstdev([math.log(a) for a in aspects])
    assert spread == pytest.approx(2 * math.log(4 / 3) / math.sqrt(12), rel=0.05)
    # areas are uniform over 5-100 per cent, apart from the large ones that do not fit an aspect
    assert sum(a < 0.2 for a in areas) / sum(a < 0.5 for a in areas) == pytest.approx(
        1 / 3, abs=0.04
    )
    # and they stand anywhere
    assert min(left for left, *_ in boxes) < 10 and max(left + w for left, _, w, _ in boxes) > 3990


def test_crops_reach_every_edge() -> None:
    boxes = [box for seed in range(500) if (box := recipes.augment(seed, 20, 20)[0])[2] < 20]
    assert {0, 20} <= {x for left, _, w, _ in boxes for x in (left, left + w)}
    assert {0, 20} <= {y for _, top, _, h in boxes for y in (top, top + h) if h < 20}


def test_a_crop_that_does_not_fit_is_drawn_up_to_ten_times() -> None:
    """A crop of the area a and the aspect r fits into 1000 x 4000 if a r is at most a quarter."""
    fallbacks = sum(recipes.augment(seed, 1000, 4000)[0][3] == 1333 for seed in range(4000))
    mean = (4 / 3 - 3 / 4) / math.log((4 / 3) / (3 / 4))  # of 1 / r
    fails = 1 - (0.25 * mean - 0.05) / 0.95
    assert fallbacks / 4000 == pytest.approx(fails**10, abs=0.015)  # 0.09


def test_image_without_a_fitting_crop_gives_its_centre() -> None:
    rng = random.Random(0)
    assert recipes.random_crop_box(rng, 10, 2000) == (0, 993, 10, 13)
    assert recipes.random_crop_box(rng, 2000, 12) == (992, 0, 16, 12)


def test_the_centre_crop_is_what_resizing_first_would_keep() -> None:
    # 500 x 375 resized to 341 x 256, of which 224 x 224 is kept: 224 / 256 of the shorter side
    assert recipes.center_crop_box(500, 375, 224, 256) == (86, 23, 328, 328)
    assert recipes.center_crop_box(375, 500, 224, 256) == (23, 86, 328, 328)
    assert recipes.center_crop_box(100, 50, 32, 32) == (25, 0, 50, 50)
    assert recipes.center_crop_box(1, 9, 224, 256) == (0, 4, 1, 1)


def test_a_run_has_the_rate_of_its_recipe() -> None:
    """The loop passes the configuration to the schedule, which has a recipe's attributes."""
    config = full(warmup_epochs=2.0, lr_step_epochs=(3.0,), num_epochs=4, lr=0.4)
    rates = [learning_rate(epoch, 256, config) for epoch in (1, 2, 3)]
    assert rates == pytest.approx([0.2, 0.4, 0.04])


def test_presets_match_the_reference() -> None:
    presets = {name: read_file(file) for name, file in PRESETS.items()}
    assert presets["RN50_FP16_8GPU"] == {
        "n": 8, "batch_size": 208, "dtype": "float16", "recipe": "reference",
        "model_prefix": "model",
    }  # fmt: skip
    assert presets["RN50_FP32_1GPU"]["batch_size"] == 96
    assert presets["SCORE_FP16"]["batch_size"] == 128
    assert presets["SCORE_FP32"]["batch_size"] == 64
    runs = {f"RN50_{dtype}_{n}GPU" for dtype in ("FP16", "FP32") for n in (1, 4, 8)}
    assert runs | {"SCORE_FP16", "SCORE_FP32", "reference", "roadsigns"} <= set(presets)
