"""The flags of other training programs, with their names here.

The programs are the train.py of timm and of torchvision's references, and train.py, runner and
benchmark.py for MXNet in NVIDIA's DeepLearningExamples. The file has their flags by answer; none is
a flag of a run.
"""

from __future__ import annotations

import json
from pathlib import Path

_FILE = Path(__file__).with_name("foreign_flags.json")
ANSWERS: dict[str, str] = json.loads(_FILE.read_text(encoding="utf-8"))
TABLE = {name: answer for answer, names in ANSWERS.items() for name in names.split()}
