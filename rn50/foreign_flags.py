"""What flags of other training programs are called here, for those who bring them along.

The names are those of timm's train.py, torchvision's references/classification/train.py and the
MXNet train.py, runner and benchmark.py of NVIDIA's DeepLearningExamples, from 18.12 to the last.
The file has, for each answer ("here it is" a flag, or "there is none:" and why), those names; none
of them is a flag of a run.
"""

from __future__ import annotations

import json
from pathlib import Path

_FILE = Path(__file__).with_name("foreign_flags.json")
ANSWERS: dict[str, str] = json.loads(_FILE.read_text(encoding="utf-8"))
TABLE = {name: answer for answer, names in ANSWERS.items() for name in names.split()}
