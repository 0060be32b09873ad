"""Which precisions a machine computes in, and which one a run takes by itself.

Tensor Cores multiply float16 from compute capability 7.0 on (Volta, Turing), bfloat16 and TF32 from
8.0 on (Ampere). A processor computes in bfloat16 where it has avx512_bf16 or amx.
"""

from __future__ import annotations

from rn50lib.config.kinds import scaling
from rn50lib.hardware import Machine

NEEDS = {"tf32": (8, 0), "bfloat16": (8, 0), "float16": (7, 0)}


def capability(machine: Machine) -> tuple[int, int]:
    """The compute capability that all GPUs of the machine have."""
    return min(gpu.capability for gpu in machine.gpus)


def lacks(dtype: str, machine: Machine, network: str | None = None) -> str | None:
    """Why a machine cannot train in `dtype`, with the remedy; None where it can.

    bfloat16 runs on every processor: one that has no instructions for it is only slower. float16
    does too, but nothing is gained by it: only the tiny network, made for looking, may use it.
    """
    if not machine.gpus:
        if dtype == "tf32":
            return "needs a GPU, and there is none here: use --dtype float32"
        if dtype == "float16" and network != "tiny":
            return (
                "needs a GPU, and there is none here: use --dtype bfloat16 (same range as"
                " float32) or --dtype float32; --network tiny runs in float16 anywhere"
            )
        return None
    wanted, found = NEEDS.get(dtype, (0, 0)), capability(machine)
    if found >= wanted:
        return None
    instead = "float16" if found >= NEEDS["float16"] else "float32"
    return (
        f"needs a GPU of capability {wanted[0]}.{wanted[1]} or later, and this one has"
        f" {found[0]}.{found[1]}: use --dtype {instead}"
    )


def best_dtype(machine: Machine, recipe: str) -> tuple[str, str]:
    """The precision that `auto` takes on this machine, and why."""
    if machine.gpus:
        found = capability(machine)
        has = f"(capability {found[0]}.{found[1]})"
        if found >= NEEDS["float16"] and recipe == "reference":
            return "float16", f"the reference's, and the GPU computes in it {has}"
        if found >= NEEDS["bfloat16"]:
            return "bfloat16", f"the GPU computes in bfloat16 {has}"
        if found >= NEEDS["float16"]:
            return "float16", f"the GPU computes in float16, and not in bfloat16 {has}"
        return "float32", f"the GPU has Tensor Cores for neither float16 nor bfloat16 {has}"
    if machine.bfloat16:
        return "bfloat16", f"the processor computes in bfloat16 ({machine.bfloat16})"
    return "float32", "the processor has neither avx512_bf16 nor amx: bfloat16 would be slower"


def scales(loss_scale: str | None) -> bool:
    """Whether a --loss-scale is one that changes during the run."""
    return loss_scale is not None and scaling(loss_scale)[1] is not None
