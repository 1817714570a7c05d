"""Batch sizes and the number of steps."""

from __future__ import annotations

from dsgen.recipe.resolve.ledger import SAID, Ledger
from dsgen.recipe.schema import Batch, Length


def decide_batch(batch: Batch, ranks: int, ledger: Ledger) -> tuple[int, int, int]:
    """(micro batch, accumulation, global batch) on `ranks` data-parallel ranks.

    The identity is DeepSpeed's (runtime/config.py, _set_batch_related_parameters): global = micro x accumulation x
    ranks. The rules have made sure that two are given and that the third is whole.
    """
    micro, accumulation, total = batch.micro, batch.accumulation, batch.global_
    reason = f"global = micro x accumulation x {ranks} data-parallel ranks"
    if total is None and micro is not None and accumulation is not None:
        total = micro * accumulation * ranks
    elif accumulation is None and micro is not None and total is not None:
        accumulation = total // (micro * ranks)
    elif micro is None and accumulation is not None and total is not None:
        micro = total // (accumulation * ranks)
    assert micro is not None and accumulation is not None and total is not None
    ledger.note("train_batch_size", total, SAID if batch.global_ is not None else reason)
    ledger.note("train_micro_batch_size_per_gpu", micro, SAID if batch.micro is not None else reason)
    ledger.note("gradient_accumulation_steps", accumulation, SAID if batch.accumulation is not None else reason)
    return micro, accumulation, total


def decide_steps(length: Length, tokens_per_step: int, ledger: Ledger) -> int | None:
    """Optimizer steps to train, or None when only the data can tell (epochs)."""
    if length.steps is not None:
        return ledger.note("length.steps", length.steps, SAID)
    if length.tokens is not None:
        steps = -(-length.tokens // tokens_per_step)
        return ledger.note(
            "length.steps", steps, f"{length.tokens} tokens at {tokens_per_step} tokens per step, rounded up"
        )
    return None
