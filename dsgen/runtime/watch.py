"""Stop rules: a run that learns nothing ends with a message that helps, instead of holding its devices for days."""

from __future__ import annotations

import math

from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.settings import Dtype

NONFINITE_STEPS = 10
ZERO_STEPS = 10
SKIPPED_STEPS = 50
"""Dynamic loss scaling halves the scale at every skipped step; from 2**32 it needs 32 of them to reach 1."""


class Watch:
    """Counts consecutive steps of which nothing is learned. All ranks see the same numbers, so all stop together."""

    def __init__(self, dtype: Dtype) -> None:
        self._dtype = dtype
        self._nonfinite = self._zero = self._skipped = 0

    def step(self, step: int, loss: float, *, skipped: bool) -> None:
        """Take in one optimizer step; raises RuntimeProblem when the run has learned nothing for too long."""
        self._nonfinite = 0 if math.isfinite(loss) else self._nonfinite + 1
        self._zero = self._zero + 1 if loss == 0 else 0
        self._skipped = self._skipped + 1 if skipped else 0
        if self._nonfinite >= NONFINITE_STEPS:
            raise RuntimeProblem(
                f"the loss was not a number in {NONFINITE_STEPS} steps on end, up to step {step}",
                "this model's activations leave the range of fp16: use precision: bf16, or fp32 where there is no bf16"
                if self._dtype == "fp16"
                else "lower the learning rate or warm it up longer, set gradient_clipping: 1.0, and look at the data "
                "of the first such step; checkpoints from before it are whole",
            )
        if self._zero >= ZERO_STEPS:
            raise RuntimeProblem(
                f"the loss was exactly 0 in {ZERO_STEPS} steps on end, up to step {step}",
                "either no label is left (look at the data and its fields), or the numbers broke: with fp16 use bf16 "
                "or a smaller initial loss scale",
            )
        if self._skipped >= SKIPPED_STEPS:
            raise RuntimeProblem(
                f"{SKIPPED_STEPS} steps on end were skipped because of overflow, up to step {step}: nothing is learned",
                "use precision: bf16; with fp16, a smaller initial_scale_power, or a loss scale that may fall further"
                if self._dtype == "fp16"
                else "lower the learning rate and set gradient_clipping: 1.0",
            )
