"""Run the command line: `python -m rn50 VERB`, also from a bare checkout."""

from rn50.cli import program

program()
