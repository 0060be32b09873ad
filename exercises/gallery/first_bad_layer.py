"""Report the first layer whose output is not finite: python first_bad_layer.py SCRIPT."""

import runpy
import sys

import torch


def check(layer, inputs, output):
    if inputs[0].isfinite().all() and not output.isfinite().all():
        bad, largest = int((~output.isfinite()).sum()), inputs[0].abs().max()
        print(f"the first bad layer is {layer}: its inputs are finite (at most {largest:.3g}),"
              f" {bad} of {output.numel()} outputs in {output.dtype} are not")  # fmt: skip
        sys.exit(1)


torch.nn.modules.module.register_module_forward_hook(check)
runpy.run_path(sys.argv[1], run_name="__main__")
