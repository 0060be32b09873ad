"""The tests, a folder per part of the project; `tests.capabilities` asks what this machine has."""
