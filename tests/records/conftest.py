"""Fixtures for the tests of the record files."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Syncing is what these tests would spend most of their time on."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
