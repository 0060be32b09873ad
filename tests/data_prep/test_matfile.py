"""MATLAB files: two that SciPy wrote, and what is none."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep.matfile import read_structs

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.mark.parametrize("name", ["meta.mat", "meta-plain.mat"])
def test_a_file_of_scipys(name):
    """scipy.io.savemat of SciPy 1.17, compressed and not, in the shape of ImageNet's meta.mat."""
    rows = read_structs((FIXTURES / name).read_bytes(), "synsets")
    assert [row["WNID"] for row in rows] == ["n01440764", "n01443537", "n01443243", "n00015388"]
    assert [row["ILSVRC2012_ID"] for row in rows] == [1, 2, 3, 4]
    assert [row["num_children"] for row in rows] == [0, 0, 0, 3]
    assert rows[2] == {
        "ILSVRC2012_ID": 3,
        "WNID": "n01443243",
        "words": "a third, été",
        "gloss": "gloss ü",
        "num_children": 0,
        "children": [],
        "wordnet_height": 0,
        "num_train_images": 4,
    }
    assert rows[3]["children"] == [1, 2, 3]


@pytest.mark.parametrize(
    ("data", "name", "reason"),
    [
        (b"", "synsets", "not a MATLAB 5 file"),
        (b"x" * 500, "synsets", "not a MATLAB 5 file"),
        ((FIXTURES / "meta.mat").read_bytes(), "other", "other is not an array of structs"),
        ((FIXTURES / "meta.mat").read_bytes(), "nothing", "no variable nothing"),
        ((FIXTURES / "meta.mat").read_bytes()[:700], "synsets", "the file is cut short"),
    ],
)
def test_unreadable_files_are_refused(data, name, reason):
    with pytest.raises(ValueError, match=reason):
        read_structs(data, name)


@given(st.data())
def test_damage_is_a_value_error_or_harmless(data):
    damaged = bytearray((FIXTURES / "meta-plain.mat").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        rows = read_structs(bytes(damaged), "synsets")
    except ValueError:
        return
    assert all(isinstance(row, dict) for row in rows)
