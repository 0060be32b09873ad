"""What notebook 03 does on a machine with a single GPU: two workers need two."""

from __future__ import annotations

import os

from rn50lib import hardware
from workshop import output


def hide(profile: str) -> str:
    """Hide the GPU from this notebook and its runs where there is exactly one, and say so.

    Returns the profile to go on with. Two workers then run on the processor, which shows
    everything but the speed.
    """
    if len(hardware.machine().gpus) != 1:
        return profile
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    hardware.machine.cache_clear()
    text = (
        "This machine has one GPU, and several workers need one each. In this notebook they run on"
        " the processor instead: everything is the same but the speed."
    )
    output.show(f'<p class="box warn">{text}</p>', text)
    return "cpu" if profile == "gpu" else profile
