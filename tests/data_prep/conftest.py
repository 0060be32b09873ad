"""Fixtures for the tests of the data preparation programs."""

import io
import sys

import numpy as np
import pytest
from PIL import Image

from data_prep import common, processes


@pytest.fixture
def in_this_process(monkeypatch):
    """Avoid worker processes, which would take most of the time of these tests."""
    monkeypatch.setattr(processes, "usable_cores", lambda: 0)


def make_image(seed, mode="RGB", form="JPEG", size=(48, 40), **settings):
    """Return an image that is different for each seed."""
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 255, (5, 6, 3), np.uint8))
    out = io.BytesIO()
    small.resize(size).convert(mode).save(out, form, **settings)
    return out.getvalue()


@pytest.fixture
def error_of(monkeypatch, capsys):
    """`error_of(main, "flag", ...)` returns the one line printed for a wrong command."""

    def run(main, *arguments):
        monkeypatch.setattr(sys, "argv", ["program", *map(str, arguments)])
        monkeypatch.setattr(common.lifetime, "end_on_sigterm", lambda: None)
        monkeypatch.setattr(common.lifetime, "end_with", lambda status: sys.exit(status()))
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            common.run_program(main)
        assert caught.value.code == 2
        stderr = capsys.readouterr().err
        assert stderr.startswith("error: ")
        assert stderr.count("\n") == 1
        return stderr.removeprefix("error: ").rstrip("\n")

    return run
