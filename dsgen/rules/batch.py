"""Batch arithmetic: micro batch x gradient accumulation x data-parallel world size = global batch."""

from __future__ import annotations

from collections.abc import Iterator
from math import isqrt

from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View

GLOBAL = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
ACCUMULATION = "gradient_accumulation_steps"


@rule("BAT001")
def parallel_divides_devices(view: View) -> Iterator[Problem]:
    """Devices cannot be split into groups of tensor x sequence.

    The data-parallel world size is devices / (tensor x sequence). DeepSpeed takes a fraction without a word
    (sequence_parallel_size 3 on 2 ranks gives train_batch_size 2.667) and fails later.
    """
    shards = (view.tensor_parallel or 1) * (view.sequence_parallel or 1)
    if view.devices is None or view.devices % shards == 0:
        return
    divisors = _near_divisors(view.devices, shards)
    yield Problem(
        path="parallel.tensor" if (view.tensor_parallel or 1) > 1 else "parallel.sequence",
        message=f"{view.devices} devices cannot be split into groups of {shards} "
        f"(tensor {view.tensor_parallel or 1} x sequence {view.sequence_parallel or 1})",
        help=f"make tensor x sequence one of {', '.join(map(str, divisors))}",
    )


@rule("BAT002")
def batch_has_two_of_three(view: View) -> Iterator[Problem]:
    """Fewer than two of micro batch, accumulation and global batch are given, so the third is unknown."""
    given = [value for value in (view.micro_batch, view.accumulation, view.global_batch) if value is not None]
    if len(given) >= 2 or not view.has_batch:
        return
    yield Problem(
        path="batch",
        message=f"{'only one' if given else 'none'} of {view.spell(MICRO)}, {view.spell(ACCUMULATION)}, "
        f"{view.spell(GLOBAL)} is given: the batch is not decided",
        help="give two of the three; the third follows from the number of devices",
    )


@rule("BAT003")
def batch_product_holds(view: View) -> Iterator[Problem]:
    """The given batch sizes contradict each other, or leave no whole number for the one that is left out.

    DeepSpeed: "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu *
    gradient_acc_step * world_size" (runtime/config.py, _batch_assertion), after the job was queued.
    """
    ranks = view.data_parallel
    micro, accumulation, total = view.micro_batch, view.accumulation, view.global_batch
    if ranks is None or total is None:
        return
    if micro is not None and accumulation is not None:
        if micro * accumulation * ranks == total:
            return
        yield Problem(
            path=GLOBAL,
            message=f"global batch {total} is not micro {micro} x accumulation {accumulation} x {ranks} "
            f"data-parallel ranks = {micro * accumulation * ranks}",
            help=f"write {micro * accumulation * ranks}, or leave one of the three out",
        )
    elif micro is not None and total % (micro * ranks):
        yield Problem(
            path=GLOBAL,
            message=f"global batch {total} cannot be reached with micro {micro} on {ranks} data-parallel ranks: "
            f"it is not a multiple of {micro * ranks}",
            help=_nearest(total, micro * ranks, "accumulation"),
        )
    elif accumulation is not None and total % (accumulation * ranks):
        yield Problem(
            path=GLOBAL,
            message=f"global batch {total} cannot be reached with accumulation {accumulation} on {ranks} "
            f"data-parallel ranks: it is not a multiple of {accumulation * ranks}",
            help=_nearest(total, accumulation * ranks, "micro"),
        )


def _nearest(total: int, unit: int, name: str) -> str:
    """The multiples of `unit` around `total`, each with the factor that gives it."""
    below, above = total // unit, total // unit + 1
    options = [f"{factor * unit} ({name} {factor})" for factor in (below, above) if factor > 0]
    return "nearest: " + " or ".join(options)


def _near_divisors(number: int, near: int) -> list[int]:
    divisors = {d for i in range(1, isqrt(number) + 1) if number % i == 0 for d in (i, number // i)}
    return sorted(sorted(divisors, key=lambda d: (abs(d - near), d))[:4])
