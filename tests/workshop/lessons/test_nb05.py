"""The checks of notebook 05: right versions pass, usual mistakes get a diagnosis."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from workshop.lessons import nb05

pytestmark = [pytest.mark.slow, pytest.mark.needs("torch", "dali")]

PHOTOS, ENDLESS = inspect.getsource(nb05.photos), inspect.getsource(nb05.endless)


def edited(source: str, old: str, new: str):
    """Return the function of a source with a change."""
    assert old in source
    names: dict = {"Path": Path, "Iterator": object, "Any": object}
    exec(f"from __future__ import annotations\n{source.replace(old, new)}", names)
    return names["photos" if "def photos" in source else "endless"]


def test_finished_versions_pass_and_stubs_are_not_attempted(tmp_path: Path, capsys):
    for name in ("photos", "endless"):
        (tmp_path / name).mkdir()
        finished = getattr(nb05, name)
        assert getattr(nb05, f"judge_{name}")(finished, tmp_path / name)
        check = getattr(nb05, f"check_{name}")
        assert check(lambda *given: None) is finished
        assert "not written yet" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("shard_id=rank, num_shards=ranks,", "", "shard_id=rank"),
        (", random_shuffle=True", "", "order of the shards"),
        (" - 1\n", "\n", "Labels start at 1"),
        ("mean=127.5, std=127.5", "", "instead of -1 to 1"),
        ("fn.resize(images, size=[size, size])", "images", "shape|dense|uniform"),
        ("std=127.5", 'std=127.5, output_layout="HWC"', "shape 16 × 16 × 3"),
        ("index_path=index, ", "", "index"),
        ("return images, ", "return ", "two nodes"),
        ("random_area=[0.37, 0.75], ", "", "% of the area"),
        ("[0.37, 0.75]", "[0.7, 1.0]", "% of the area"),
        ("random_aspect_ratio=[1, 1],", "", "not squares"),
        ("mean=127.5, ", "mean=127.5, mirror=fn.random.coin_flip(), ", "mirrored"),
        ("map(str, folder", "(folder", "map(str, …)"),
        ("shard_id=rank, num_shards=ranks", "shard_id=ranks, num_shards=rank", "`ranks` has"),
    ],
)  # fmt: skip
def test_graph_that_is_wrong_gets_a_diagnosis(old: str, new: str, said: str, capsys):
    assert nb05.check_photos(edited(PHOTOS, old, new)) is nb05.photos
    wrong = capsys.readouterr().out
    assert wrong[0] == "✗" and any(part in wrong for part in said.split("|")), wrong


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (".squeeze(1)", "", "squeeze"),
        ("(loader):", "(loader, size=24):", "ends after 3 batches"),
        ('batch["data"], batch', "batch", "first of each pair|pair"),
        ("for (batch,) in", "for batch in", "TypeError"),
    ],
)
def test_iterator_that_is_wrong_gets_a_diagnosis(old: str, new: str, said: str, capsys):
    assert nb05.check_endless(edited(ENDLESS, old, new)) is nb05.endless
    wrong = capsys.readouterr().out
    assert wrong[0] == "✗" and any(part in wrong for part in said.split("|")), wrong
