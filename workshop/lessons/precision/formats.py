"""Floating-point formats as two numbers: bits of the exponent, bits of the mantissa.

    value = ± 1.mantissa × 2^exponent, or ± 0.mantissa × 2^lowest (subnormal: towards zero)

The largest exponent is kept for infinity and NaN, as IEEE 754 has it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Format:
    """A binary format with a sign, `exponent` bits (2 to 8) and `mantissa` bits (1 to 23)."""

    name: str
    exponent: int
    mantissa: int

    @property
    def bits(self) -> int:
        return 1 + self.exponent + self.mantissa

    @property
    def highest(self) -> int:
        """The exponent of the largest number: it lies below 2^(highest + 1)."""
        return 2 ** (self.exponent - 1) - 1

    @property
    def lowest(self) -> int:
        """The exponent of the smallest number that has all bits of its mantissa."""
        return 1 - self.highest

    @property
    def tiny(self) -> int:
        """The exponent of the smallest number above zero, one bit of mantissa left."""
        return self.lowest - self.mantissa

    @property
    def largest(self) -> float:
        return float((2 - 2.0**-self.mantissa) * 2.0**self.highest)

    @property
    def step(self) -> float:
        """The distance from 1 to the next number."""
        return 2.0**-self.mantissa


FLOAT32 = Format("float32", 8, 23)
TF32 = Format("tf32", 8, 10)  # what Tensor Cores take of a float32: its memory has 32 bits
BFLOAT16 = Format("bfloat16", 8, 7)
FLOAT16 = Format("float16", 5, 10)
FORMATS = {item.name: item for item in (FLOAT32, TF32, BFLOAT16, FLOAT16)}
