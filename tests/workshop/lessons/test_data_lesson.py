"""The helpers of the data lesson: odd files, bytes shown in parts, programs run from a cell."""

from __future__ import annotations

import io
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rn50lib import recipe
from rn50lib.data.source import open_source
from workshop import output
from workshop.errors import RunFailed
from workshop.lessons.data import figures, hexdump, odd_files, survey
from workshop.programs import program


@pytest.fixture(scope="module")
def picture() -> bytes:
    """A JPEG of 500 x 375 smooth colours."""
    across, down = np.meshgrid(np.linspace(0, 255, 500), np.linspace(0, 255, 375))
    pixels = np.stack([across, down, 255 - across], axis=-1).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=95)
    return out.getvalue()


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What is displayed, as pairs of HTML and text; an update replaces the last one."""
    found: list[tuple[str, str]] = []
    places: dict[str, int] = {}

    def update(self: Any, data: Any, metadata: Any = None) -> None:
        pair = (data.get("text/html", ""), data["text/plain"])
        if self.id in places:
            found[places[self.id]] = pair
        else:
            places[self.id] = len(found)
            found.append(pair)

    monkeypatch.setattr(output.Slot, "update", update)
    monkeypatch.setattr(output, "show", lambda html, text, extra=None: found.append((html, text)))
    return found


def test_the_twins_are_what_they_say(picture: bytes) -> None:
    twins = {twin.name: twin.data for twin in odd_files.make(picture)}
    opened = {
        name: Image.open(io.BytesIO(twins[name])) for name in ("cmyk.JPEG", "png.JPEG", "grey.JPEG")
    }
    assert {name: (image.format, image.mode) for name, image in opened.items()} == {
        "cmyk.JPEG": ("JPEG", "CMYK"),
        "png.JPEG": ("PNG", "RGB"),
        "grey.JPEG": ("JPEG", "L"),
    }
    assert Image.open(io.BytesIO(twins["turned.JPEG"])).getexif()[0x0112] == 6
    assert twins["pointer.JPEG"].startswith(b"version https://git-lfs.github.com/spec/v1\n")
    assert twins["cut.JPEG"] == picture[: len(twins["cut.JPEG"])] != picture
    assert twins["empty.JPEG"] == b""


def test_what_decodes_and_what_is_refused(picture: bytes) -> None:
    outcomes = {t.name: odd_files.decode(t.data, t.name) for t in odd_files.make(picture)}
    refused = {name for name, done in outcomes.items() if done.pixels is None}
    assert refused == {"cut.JPEG", "text.JPEG", "pointer.JPEG", "empty.JPEG"}
    assert all(outcomes[name].said.startswith(name) for name in refused)
    assert "git lfs pull" in outcomes["pointer.JPEG"].said
    assert outcomes["exif.JPEG"].said.startswith("warning: Corrupt EXIF")
    whole = outcomes["ordinary.JPEG"].pixels
    assert whole is not None and whole.shape == (224, 224, 3)
    for name, most in (("png.JPEG", 0), ("exif.JPEG", 0), ("turned.JPEG", 0), ("cmyk.JPEG", 2)):
        pixels = outcomes[name].pixels
        assert pixels is not None
        assert abs(pixels.astype(int) - whole).mean() <= most, name


def test_a_hexdump_names_every_part_and_leaves_long_ones_out(shown: list) -> None:
    data = struct.pack("<I", 7) + bytes(200) + b"end"
    hexdump.hexdump(data, [("head", 4, "seven"), ("body", 200, "zeros"), ("tail", 3, "end")])
    html, text = shown[0]
    dump = html.partition('<pre class="rn50-hex">')[2].partition("</pre>")[0]
    lines = re.sub("<[^>]*>", "", dump).splitlines()
    assert lines[0].split()[0] == "0" and lines[0].split()[1].startswith("①07000000②0000")
    assert lines[3].strip() == "⋮ 144 bytes left out"  # lines 48 to 191 of the body
    assert lines[4].endswith("end") and "③65" in lines[4]
    assert [name in html for name in ("head", "body", "tail", "①", "②", "③")] == [True] * 6
    assert "4 – 203" in text


def test_a_hexdump_shows_every_byte_of_what_is_short(shown: list) -> None:
    data = bytes(range(40))
    hexdump.hexdump(data, [("all", 40, "")])
    assert "left out" not in shown[0][0]
    assert all(f">{byte:02x}<" in shown[0][0] for byte in data)


def test_a_hexdump_refuses_parts_that_do_not_add_up() -> None:
    with pytest.raises(ValueError, match="add up"):
        hexdump.hexdump(b"12345", [("a", 4, "")])


def test_a_program_shows_its_command_and_what_it_prints(tmp_path: Path, shown: list) -> None:
    (tmp_path / "in" / "a").mkdir(parents=True)
    (tmp_path / "in" / "a" / "x.jpg").write_bytes(b"x")
    (tmp_path / "out").mkdir()
    program("data_prep.im2rec", "--list", "--recursive", "out/all", "in", folder=tmp_path)
    assert (tmp_path / "out" / "all.lst").read_text() == "0\t0.000000\ta/x.jpg\n"
    command, said = shown[0][1].splitlines()
    assert command == "$ python -m data_prep.im2rec --list --recursive out/all in"
    assert said == "out/all.lst: 1 images in 1 classes"


def test_a_program_that_fails_is_an_error_unless_it_should(tmp_path: Path, shown: list) -> None:
    arguments = ("data_prep.im2rec", "--pass-through", tmp_path / "none", tmp_path)
    with pytest.raises(RunFailed, match="exit status 2 where 0") as failed:
        program(*arguments)
    assert "there is no such list" in failed.value.log
    program(*arguments, status=2)
    with pytest.raises(RunFailed, match="exit status 0 where 2"):
        program("data_prep.im2rec", "--help", status=2)


def test_a_survey_counts_what_the_files_hold(tmp_path: Path) -> None:
    sizes = {"a": [(50, 40), (40, 50)], "b": [(64, 64)]}
    for split in ("train", "val"):
        for name, shapes in sizes.items():
            (tmp_path / split / name).mkdir(parents=True)
            for i, shape in enumerate(shapes):
                mode = "L" if name == "b" else "RGB"
                Image.new(mode, shape).save(tmp_path / split / name / f"{i}.jpg")
    source = open_source(tmp_path, "train", "files")
    found = survey.survey(source)
    assert list(zip(found.width.tolist(), found.height.tolist(), strict=True)) == [
        (50, 40), (40, 50), (64, 64)
    ]  # fmt: skip
    assert found.portrait.tolist() == [False, True, False]
    assert found.grey.tolist() == [False, False, True]
    assert found.size.tolist() == [Path(source.name(i)).stat().st_size for i in range(3)]


def test_measurements_take_turns_and_the_first_round_is_dropped() -> None:
    calls: list[str] = []

    def measure(name: str) -> float:
        calls.append(name)
        return len(calls)

    values = survey.in_turn([lambda: measure("a"), lambda: measure("b")], rounds=2)
    assert calls == ["a", "b"] * 3
    assert values == [[3, 5], [4, 6]]


def test_the_crops_shown_are_those_of_training(picture: bytes) -> None:
    augmentation = recipe.Augmentation(area=(0.2, 0.6))
    _, shares = figures.training_crops(picture, augmentation, seed=3, size=64)
    assert len(shares) == 6 and all(0.19 < share < 0.61 for share in shares)
    many = figures.crop_shares(augmentation, 500, 375, 200)
    assert many.min() >= 0.195 and many.max() <= 0.605
