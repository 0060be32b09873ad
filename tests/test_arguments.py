"""Arguments of all commands: whole numbers, finite numbers and names that are not empty."""

from __future__ import annotations

import shlex
from importlib import import_module

import pytest


@pytest.mark.parametrize(
    ("argv", "flag", "must"),
    [
        ("rn50 score m -1", "epoch", "at least 0"),
        ("rn50 export m 1.5 -o a.onnx", "epoch", "a whole number"),
        ("rn50 predict m 1 a.jpg -b 0", "--batch-size", "at least 1"),
        ("rn50 score '' 1", "prefix", "a text that is not empty"),
        ("rn50 export m 1 -o ''", "--output", "a text that is not empty"),
        ("rn50 import a.pth -o ''", "--output", "a text that is not empty"),
        ("rn50 import a.pth -o a --val-resize 0", "--val-resize", "at least 1"),
        ("rn50 plot '' -o a.png", "reports", "a text that is not empty"),
        ("rn50 compare '' b.json", "files", "a text that is not empty"),
        ("rn50 diagnose --seconds nan", "--seconds", "a finite number"),
        ("rn50 benchmark -o a.json -w -1", "--warmup", "at least 0"),
        ("rn50 benchmark -o a.json -n 1,0", "--n-GPUs", "at least 1"),
        ("rn50 scale --price inf", "--price", "greater than 0"),
        ("rn50 workshop grade in --jobs 0", "--jobs", "at least 1"),
        ("rn50 workshop grade ''", "DIR", "a text that is not empty"),
        ("rn50 workshop run ''", "notebooks", "a text that is not empty"),
        ("data_prep.im2rec --num-thread 0 a b", "--num-thread", "at least 1"),
        ("data_prep.im2rec --quality 101 a b", "--quality", "1 to 100"),
        ("data_prep.im2rec --resize -5 a b", "--resize", "0 to 65500"),
        ("data_prep.imagenet a b --jobs 0", "--jobs", "at least 1"),
        ("data_prep.roadsigns a --train 11", "--train", "at least 12"),
        ("data_prep.roadsigns a --seed -1", "--seed", "at least 0"),
        ("data_prep.roadsigns ''", "OUT", "a text that is not empty"),
        ("data_prep.tfrecord a --train-shards 100000", "--train-shards", "1 to 99999"),
        ("data_prep.verify a --jobs many", "--jobs", "a whole number"),
    ],
)
def test_arguments_are_converted_alike(capsys, argv: str, flag: str, must: str) -> None:
    """The line names the argument and what it must be; the status is 2."""
    program, *words = shlex.split(argv)
    main = import_module("rn50.cli" if program == "rn50" else program).main
    with pytest.raises(SystemExit) as ended:
        main(words)
    (line,) = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and line.startswith("error: ")
    assert flag in line and f"must be {must}" in line
