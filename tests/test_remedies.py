"""Remedies are tried: a command fails, its error line is followed, and then it works."""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from rn50lib import checkpoint
from rn50lib.resnet import tiny
from tests.support import Photos, write_few

Run = Callable[..., Any]
DRY = ("--network tiny --image-shape 32 --dtype float32 --threads 1 --recipe reference -e 1"
       " --dry-run").split()  # fmt: skip
WORD = r"(?:'[^']*'|[^\s,:;`]+)"


def run(rn50: Run, words: list[str]) -> str:
    """Run a command that must succeed."""
    if words[0] == "rn50":
        ended = rn50(*words[1:])
        assert ended.status == 0, ended.err
    else:
        assert words[:2] == ["python", "-m"], words
        assert not import_module(words[2]).main(words[3:])
    return ""


def changed(argv: list[str], flags: list[str]) -> list[str]:
    """Return a command with other values for its flags, or with new flags."""
    argv = list(argv)
    for i, word in enumerate(flags):
        if word.startswith("-"):
            value = flags[i + 1 : i + 2] if not flags[i + 1 : i + 2][:1] == ["-"] else []
            if word in argv and value:
                argv[argv.index(word) + 1] = value[0]
            else:
                argv += [word, *(v for v in value if not v.startswith("-"))]
    return argv


def follow(rn50: Run, argv: list[str], line: str, more: str) -> None:
    """Do what an error line says, then run the command."""
    quoted = re.findall(r"`([^`]*)`", line)
    commands = [text for text in quoted if text.startswith(("rn50 ", "python -m "))]
    for text in [text for text in commands if not text.startswith("rn50 run")]:
        run(rn50, [*shlex.split(text), *more.split()])
    if not commands:
        flags = [text for text in quoted if text.startswith("-")]
        found = re.search(rf"(?:use|pass) ((?:-\w|--[\w-]+)(?: {WORD})?)", line)
        assert flags or found, f"no remedy in: {line}"
        argv = changed(argv, shlex.split(flags[0] if flags else found[1]))  # type: ignore[index]
    run(rn50, argv)


@pytest.mark.parametrize(
    ("argv", "more"),
    [
        ("rn50 run --data-root few -b 16", ""),
        ("rn50 run --data-root few -b 1", ""),
        ("rn50 run --data-root few --macrobatch-size 64", ""),
        ("rn50 run --data-root few -b 5 --macrobatch-size 40", ""),
        ("rn50 run --data-root few -n 16 --hosts localhost:16 --comm ddp", ""),
        ("rn50 run --data-root few --comm local -n 2", ""),
        ("rn50 run --data-root few --launcher torchrun -n 2 --comm horovod", ""),
        ("rn50 run --data-root few --model-prefix 'my model'", ""),
        ("rn50 run --data-root few --lr-step-epochs 3 --lr-schedule cosine", ""),
        ("rn50 run --data-root 'no data/roadsigns'", "--train 12 --val 12 --jobs 1"),
        ("rn50 run --data-root 'only train'", ""),
        ("rn50 run --data-root 'no index'", ""),
        ("rn50 run --data-root 'my files' --data-format tfrecord", "--jobs 1"),
        ("rn50 benchmark --data-root few -n 1 -b 64 -o b.json", ""),
        ("python -m data_prep.im2rec --pass-through 'my files/x' 'my files/train'", ""),
    ],
)
def test_an_error_is_followed_by_a_remedy_that_works(
    rn50: Run, photos: Photos, argv: str, more: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_few(Path("few"))
    for name in ("my files", "only train", "no index"):
        shutil.copytree(photos.root, name)
    shutil.rmtree("my files/records")
    Path("only train/records/val.rec").unlink()
    Path("no index/records/train.idx").write_text("nothing\n")
    checkpoint.write_symbol("my model", tiny(3))
    checkpoint.save("my model", checkpoint.Checkpoint(1, {}, {}, {}, {}))
    words = shlex.split(argv)
    if words[0] == "rn50":
        words += DRY
        ended = rn50(*words[1:])
        assert ended.status == 2, ended
        (line,) = [text for text in ended.err.splitlines() if text.startswith("error: ")]
    else:
        with pytest.raises(Exception) as caught:
            import_module(words[2]).main(words[3:])
        line = str(caught.value)
    follow(rn50, words, line, more)
