"""Fixtures for the tests of the record files."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch):
    """Skip fsync, which would take most of the time of these tests."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
