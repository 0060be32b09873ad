"""Fixtures for the tests of the data preparation programs."""

import sys

import pytest

from data_prep import common


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
