"""What the tests of the record files share."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(request, monkeypatch):
    """Syncing is what these tests would spend most of their time on; test_publish holds it."""
    if request.module.__name__.rpartition(".")[2] != "test_publish":
        monkeypatch.setattr(os, "fsync", lambda _: None)
