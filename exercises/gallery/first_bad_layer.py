"""Run a PyTorch script and report the first layer whose output is not finite.

python first_bad_layer.py SCRIPT [ARGUMENTS]
"""

import runpy
import sys

import torch


def check(layer, inputs, output):
    if not isinstance(output, torch.Tensor) or bool(output.isfinite().all()):
        return
    if not all(x.isfinite().all() for x in inputs if isinstance(x, torch.Tensor)):
        return
    largest = max(float(x.abs().max()) for x in inputs if isinstance(x, torch.Tensor))
    bad = int((~output.isfinite()).sum())
    print(f"the first bad layer is {layer}: its inputs are finite (at most {largest:.3g}), {bad} of"
          f" {output.numel()} outputs in {output.dtype} are not")  # fmt: skip
    sys.exit(1)


torch.nn.modules.module.register_module_forward_hook(check)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
