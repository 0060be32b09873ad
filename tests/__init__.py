"""The tests, one folder per part of the project; `tests.capabilities` inspects the machine."""
