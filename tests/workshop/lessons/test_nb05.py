"""The checks of notebook 05: right versions pass, usual mistakes get a diagnosis."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.conftest import ROOT
from workshop.lessons import nb05

pytestmark = [pytest.mark.slow, pytest.mark.needs("torch", "dali")]

CROP, ENDLESS = inspect.getsource(nb05.crop), inspect.getsource(nb05.endless)
ONLY_CROP = inspect.getsource(nb05.only_crop)
PHOTOS = f"{ONLY_CROP}\n\n{inspect.getsource(nb05.photos)}"
SIDE = "fn.random.uniform(range=[126., 180.])"  # 0.7 to 1.0 times the height


def stub(*given):
    return None


def edited(source: str, old: str, new: str):
    """Return the function of a source with a change."""
    assert old in source
    names: dict = {"Path": Path, "Iterator": object, "Any": object}
    source = source.replace("import fn", "import types, fn")
    exec(f"from __future__ import annotations\n{source.replace(old, new)}", names)
    return next(names[name] for name in ("photos", "only_crop", "endless", "crop") if name in names)


def test_finished_versions_pass_and_stubs_are_not_attempted(tmp_path: Path, capsys):
    nb05.write_numbered_shards(tmp_path)
    nb05.judge_photos(nb05.photos, tmp_path)
    nb05.judge_endless(nb05.endless, tmp_path)
    assert nb05.check("photos", stub) is nb05.photos
    assert nb05.check("endless", stub, nb05.photos) is nb05.endless
    assert capsys.readouterr().out.count("not written yet") == 2


def test_written_crop_is_used_and_an_unwritten_one_replaced(capsys):
    own = edited(CROP, "[size, size]", "(size, size)")
    assert nb05.check("crop", own) is own, capsys.readouterr().out
    assert nb05.check("crop", stub) is nb05.crop
    own = edited(ONLY_CROP, "[size, size]", "(size, size)")
    assert nb05.check("only_crop", own) is own
    assert nb05.check("only_crop", stub) is nb05.only_crop
    assert capsys.readouterr().out.count("not written yet") == 2


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('"random_area": [0.37, 0.75], ', "", "% of the area"),
        ("[0.37, 0.75]", "[0.5, 0.75]", "% to 75% of the area"),
        ("[0.37, 0.75]", "[0.45, 0.75]", "% to 75% of the area"),
        ("[0.37, 0.75]", "[0.33, 0.75]", "% to 75% of the area"),
        ("[0.37, 0.75]", "[0.4, 0.4]", "a number drawn by Python"),
        (', "random_aspect_ratio": [1, 1]', "", "not squares"),
        ("[size, size]", "[size, 2 * size]", "shape"),
        ("return fn.", "return images, fn.", "several nodes"),
        ("**area)", "**area, antialias=False)", "not antialiased"),
        ("**area)", "**area, dtype=types.FLOAT)", "float32"),
        (
            "return fn.random_resized_crop(images, size=[size, size], **area)",
            f"side = {SIDE}\n    images = fn.crop(images, crop_w=side, crop_h=side)\n"
            "    return fn.resize(images, size=[size, size])",
            "same corner or centre",
        ),
        (
            "return fn.random_resized_crop(images, size=[size, size], **area)",
            f"side = {SIDE}\n    images = fn.crop(images, crop_w=side, crop_h=side,"
            " crop_pos_x=0.0, crop_pos_y=0.0)\n    return fn.resize(images, size=[size, size])",
            "same corner or centre",
        ),
        ("**area)", "**area, interp_type=types.INTERP_NN)", "not antialiased"),
        (
            "fn.random_resized_crop(images, size=[size, size], **area)",
            "fn.transpose(fn.random_resized_crop(images, size=size, **area), perm=[2, 0, 1])",
            "channels first",
        ),
        (
            "fn.random_resized_crop(images, size=[size, size], **area)",
            "fn.flip(fn.random_resized_crop(images, size=size, **area),"
            " horizontal=fn.random.coin_flip())",
            "mirrored",
        ),
        (
            "fn.random_resized_crop(images, size=[size, size], **area)",
            "fn.flip(fn.random_resized_crop(images, size=size, **area), horizontal=0, vertical=1)",
            "mirrored",
        ),
    ],
)
def test_crop_that_is_wrong_gets_a_diagnosis(old: str, new: str, said: str, capsys):
    assert nb05.check("crop", edited(CROP, old, new)) is nb05.crop
    wrong = capsys.readouterr().out
    assert said in wrong and "finished version" in wrong, wrong


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("image_random_crop(jpegs, device=place, **area)", "image(jpegs, device=place)",
         "not squares"),
        ("    images = fn.decoders.image_random_crop(jpegs, device=place, **area)",
         f"    side = {SIDE}\n    images = fn.decoders.image_crop(jpegs, crop_w=side, crop_h=side)",
         "same corner or centre"),
        ("fn.decoders.image_random_crop(jpegs, device=place, **area)",
         "fn.random_resized_crop(fn.decoders.image(jpegs, device=place), size=size, **area)",
         "decodes whole images"),
        ("device=place, ", "", "ignores `place`"),
        ("fn.resize(images, size=[size, size])", "images", "different sizes"),
        ('"random_area": [0.37, 0.75], ', "", "% of the area"),
        ("size=[size, size]", "size=[size, size], antialias=False", "not antialiased"),
        ("size=[size, size]", "size=[size, size], dtype=types.FLOAT", "float32"),
    ],
)  # fmt: skip
def test_only_crop_that_is_wrong_gets_a_diagnosis(old: str, new: str, said: str, capsys):
    assert nb05.check("only_crop", edited(ONLY_CROP, old, new)) is nb05.only_crop
    wrong = capsys.readouterr().out
    assert said in wrong and "finished version" in wrong, wrong


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("shard_id=rank, num_shards=ranks,", "", "as shard_id"),
        (", random_shuffle=True", "", "order of the files"),
        (" - 1\n", "\n", "Labels start at 1"),
        ("mean=127.5, std=127.5", "", "instead of -1 to 1"),
        ("    images = fn.decoders.image_random_crop(jpegs, device=place, **area)",
         f"    side = {SIDE}\n    images = fn.decoders.image_crop(jpegs, crop_w=side, crop_h=side)",
         "same corner or centre"),
        (" - 1\n", " - 1.0\n", "The labels are float32"),
        ("return images, data[\"image/class/label\"] - 1",
         "return images, fn.cast(data[\"image/class/label\"], dtype=types.INT32) - 1", "are int32"),
        ("std=127.5", "std=255", "Pixels range from -0."),
        ("mean=127.5, std=127.5", "mean=[123.7, 116.3, 103.5], std=127.5", "not those of ImageNet"),
        ("mean=127.5", "mean=[127.5, 127.5, 118]", "Blue has a mean of -0.42"),
        ("return images, data[\"image/class/label\"] - 1",
         "return data[\"image/class/label\"] - 1, images", "Return images, then labels"),
        ("return images, data[\"image/class/label\"] - 1", "return images, images", "labels."),
        ("device=place,", "device=place, output_type=types.BGR,", "Red and blue are exchanged"),
        ("size=[size, size])", "size=[size, size], interp_type=types.INTERP_NN)",
         "not antialiased"),
        ("return fn.resize(images, size=[size, size])", "return images", "have different sizes"),
        ("std=127.5", 'std=127.5, output_layout="HWC"', "(16, 16, 3)"),
        ("index_path=index, ", "", "index"),
        ("return images, ", "return ", "not a pair"),
        ('"random_area": [0.37, 0.75], ', "", "% of the area"),
        ("[0.37, 0.75]", "[0.49, 1.0]", "49% to 75% of the area"),
        ("[0.37, 0.75]", "[0.4, 0.4]", "a number drawn by Python"),
        ("size=[size, size])", "size=[size, size], antialias=False)", "not antialiased"),
        (', "random_aspect_ratio": [1, 1]', "", "not squares"),
        ("mean=127.5, ", "mean=127.5, mirror=fn.random.coin_flip(), ", "mirrored"),
        ("map(str, folder", "(folder", "map(str, …)"),
        ('"mixed" if device.type == "cuda" else "cpu"', '"cpu"', "It ignores `device`"),
        ("def photos", "import nvidia.dali\n@nvidia.dali.pipeline_def\ndef photos", "Leave out"),
    ],
)  # fmt: skip
def test_graph_that_is_wrong_gets_a_diagnosis(old: str, new: str, said: str, capsys):
    assert nb05.check("photos", edited(PHOTOS, old, new)) is nb05.photos
    wrong = capsys.readouterr().out
    assert "✗" in wrong and said in wrong, wrong


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (".squeeze(1)", ".squeeze(1).float()", "The labels are torch.float32"),
        (".squeeze(1)", ".squeeze(1).int()", "The labels are torch.int32"),
        (".squeeze(1)", "", "(8, 1)]; they should be"),
        ("(loader):", "(loader, size=24):", "ends after 3 batches"),
        (
            "for (batch,) in DALIClassificationIterator(loader):",
            "for (batch,) in [next(DALIClassificationIterator(loader))]:",
            "ends after 1 batch;",
        ),
        ("(loader):", '(loader, reader_name="train", auto_reset=True):', "Operator train"),
        ('batch["data"], batch', "batch", "Yield a pair"),
        ("for (batch,) in", "for batch in", "TypeError"),
        ("yield ", "return ", "Yield a pair"),
        (".squeeze(1)", ".squeeze(1) - 1", "24 different labels, from -1 to"),
    ],
)
def test_iterator_that_is_wrong_gets_a_diagnosis(old: str, new: str, said: str, capsys):
    own = edited(ENDLESS, old, new)
    assert nb05.check("endless", own, nb05.photos) is nb05.endless
    wrong = capsys.readouterr().out
    assert "✗" in wrong and said in wrong, wrong


def test_photos_may_decode_whole_images_with_a_share_for_the_gpus_engine(capsys):
    source = PHOTOS
    for old, new in [
        ("image_random_crop(jpegs, device=place, **area)", "image(jpegs, hw_decoder_load=0.9)"),
        ("fn.resize(images, size=[size, size])",
         "fn.random_resized_crop(images, size=[size, size], **area)"),
    ]:  # fmt: skip
        assert old in source
        source = source.replace(old, new)
    whole = edited(source, "", "")
    assert nb05.check("photos", whole) is whole, capsys.readouterr().out


def test_cell_of_the_notebook_takes_photos_with_other_names_of_arguments(tmp_path, capsys):
    from nvidia.dali import pipeline_def

    nb05.write_numbered_shards(tmp_path)
    source = PHOTOS.replace("rank: int, ranks: int", "me: int, n: int")
    own = edited(source, "shard_id=rank, num_shards=ranks", "shard_id=me, num_shards=n")
    master = (ROOT / "notebooks/source/05_dali.py").read_text()
    start = master.index("if DALI:\n    any_place = device.type")
    where = {"num_threads": 1, "device_id": None, "seed": 0}
    session = SimpleNamespace(pixels=16, batch=8)
    names = {"DALI": True, "nb05": nb05, "pipeline_def": pipeline_def, "folder": tmp_path,
             "device": nb05.CPU, "where": where, "session": session,
             "photos": own, "endless": nb05.endless}  # fmt: skip
    exec(master[start : master.index("# %% [markdown]", start)], names)
    out = capsys.readouterr().out
    assert "`photos` is right" in out and "(8, 3, 16, 16) torch.float32" in out


def test_iterator_may_use_the_name_of_the_readers_own_photos(capsys):
    """With a name, DALI's iterator ends after each epoch; auto_reset and a loop continue it."""
    named = edited(PHOTOS, "random_shuffle=True", 'random_shuffle=True, name="jpegs"')
    with_name = '(loader, reader_name="jpegs", auto_reset=True):'
    once = edited(ENDLESS, "(loader):", with_name)
    assert nb05.check("endless", once, named) is nb05.endless
    assert "ends after 3 batches; an epoch has 3" in capsys.readouterr().out
    lines = ENDLESS.replace("(loader):", with_name).splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("    for "))
    loop = [*lines[:at], "    while True:", *(f"    {line}" for line in lines[at:])]
    again = edited("\n".join(loop), "while True:", "while True:")
    assert nb05.check("photos", named) is named
    assert nb05.check("endless", again, named) is again
