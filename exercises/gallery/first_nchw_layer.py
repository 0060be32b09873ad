"""Report the first layer that loses channels_last: python first_nchw_layer.py SCRIPT."""

import runpy
import sys

import torch

LAST = torch.channels_last


def check(layer, inputs, output):
    pair = inputs[0], output
    if all(torch.is_tensor(x) and x.ndim == 4 and x.shape[1] > 1 for x in pair):
        if inputs[0].is_contiguous(memory_format=LAST) and not output.is_contiguous(
            memory_format=LAST
        ):
            print(f"the first layer that loses channels_last is {layer}")
            sys.exit(1)


torch.nn.modules.module.register_module_forward_hook(check)
runpy.run_path(sys.argv[1], run_name="__main__")
