"""Fixtures for the tests of the record files."""

import os

import pytest

from rn50lib.data.source import open_source
from rn50lib.errors import UserError


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Skip fsync, which would take most of the time of these tests."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


def refused(root, split="train", data_format="auto"):
    """Return the one line with which a data root is refused."""
    with pytest.raises(UserError) as caught:
        open_source(root, split, data_format)
    message = str(caught.value)
    assert "\n" not in message
    return message
