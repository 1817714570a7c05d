"""Batch arithmetic: micro batch x gradient accumulation x data-parallel world size = global batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import isqrt

from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, lookup, truth

GLOBAL = "train_batch_size"
MICRO = "train_micro_batch_size_per_gpu"
ACCUMULATION = "gradient_accumulation_steps"


@rule("BAT001")
def parallel_divides_devices(view: View) -> Iterator[Problem]:
    """Devices cannot be split into groups of tensor x sequence.

    The data-parallel world size is devices / (tensor x sequence). DeepSpeed takes a fraction without a word
    (sequence_parallel_size 3 on 2 ranks gives train_batch_size 2.667) and fails later; an autotp_size that does not
    divide the ranks is an AssertionError without a text.

    Example:
        {"tensor_parallel": {"autotp_size": 3}}

    Instead:
        {"tensor_parallel": {"autotp_size": 2}}

    Options: --world-size 8
    Since: DeepSpeed 0.16
    """
    shards = (view.tensor_parallel or 1) * (view.sequence_parallel or 1)
    if view.devices is None or view.devices % shards == 0:
        return
    divisors = _near_divisors(view.devices, shards)
    tensor = (view.tensor_parallel or 1) > 1
    if view.kind == "recipe":
        path = "parallel.tensor" if tensor else "parallel.sequence"
    else:
        path = "tensor_parallel.autotp_size" if tensor else "sequence_parallel_size"
    yield Problem(
        path=path,
        message=f"{view.devices} devices cannot be split into groups of {shards} "
        f"(tensor {view.tensor_parallel or 1} x sequence {view.sequence_parallel or 1})",
        help=f"make tensor x sequence one of {', '.join(map(str, divisors))}",
    )


@rule("BAT002")
def batch_has_two_of_three(view: View) -> Iterator[Problem]:
    """Fewer than two of micro batch, accumulation and global batch are given.

    The third follows from the number of devices, but not the other two: the batch is not decided then.

    Example (recipe):
        batch: {sequence_length: 2048, micro: 1}

    Instead:
        batch: {sequence_length: 2048, micro: 1, global: 64}

    Since: dsgen 0.1
    """
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
    """The batch sizes contradict each other, or leave no whole number for the one that is left out.

    DeepSpeed: "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu *
    gradient_acc_step * world_size" (runtime/config.py, _batch_assertion), after the job was queued. Where the number of
    ranks is not known, what is wrong with any number of them is found.

    Example:
        {"train_batch_size": 30, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}

    Instead:
        {"train_batch_size": 32, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}

    Options: --world-size 8
    Since: DeepSpeed 0.14
    """
    ranks = _ranks(view)
    micro, accumulation, total = view.micro_batch, view.accumulation, view.global_batch
    if total is None:
        return
    if ranks is None:
        if view.kind == "ds_config" and view.devices is None:
            yield from _for_any_ranks(micro, accumulation, total)
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
    elif micro is None and accumulation is None and view.kind == "ds_config" and total % ranks:
        yield Problem(
            path=GLOBAL,
            message=f"global batch {total} cannot be shared by {ranks} data-parallel ranks: it is not a multiple of it",
            help=_nearest(total, ranks, "micro"),
        )


def _for_any_ranks(micro: int | None, accumulation: int | None, total: int) -> Iterator[Problem]:
    """What is wrong with a global batch whatever the number of ranks is."""
    unit = (micro or 1) * (accumulation or 1)
    if total % unit == 0:
        return
    names = [
        f"{name} {value}" for name, value in (("micro", micro), ("accumulation", accumulation)) if value is not None
    ]
    yield Problem(
        path=GLOBAL,
        message=f"global batch {total} cannot be reached with {' x '.join(names)} on any number of ranks: it is not a "
        f"multiple of {unit}",
        help=_nearest(total, unit, "ranks" if len(names) == 2 else "times ranks"),
    )


@rule("BAT004")
def batch_is_given(view: View) -> Iterator[Problem]:
    """A config without any batch size.

    DeepSpeed: "Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided" (runtime/config.py,
    _set_batch_related_parameters). A script may fill one in before it hands the config over; transformers and
    accelerate do not, they fill in only what says `auto`.

    Example:
        # whole file
        {
          "gradient_accumulation_steps": 2,
          "bf16": {"enabled": true},
          "gradient_clipping": 1.0,
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-5}},
          "zero_optimization": {"stage": 2}
        }

    Instead:
        {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 2}

    Since: DeepSpeed 0.14
    """
    if view.kind != "ds_config" or any(view.config.get(key) is not None for key in (GLOBAL, MICRO)):
        return
    if _misspelt(view):
        return  # KEY001 says what is meant
    trainer = view.framework == "transformers"
    yield Problem(
        path=MICRO,
        message=f"neither {MICRO} nor {GLOBAL} is given: "
        + ("transformers and accelerate add none, and " if trainer else "")
        + "DeepSpeed refuses to start"
        + ("" if trainer else " unless the program writes one"),
        help=f'write "{MICRO}": "auto"' if trainer else f"give {MICRO}",
    )


def _misspelt(view: View) -> bool:
    """Whether one of the first unknown keys at the top level is near to a batch size."""
    unknown = itertools.islice((name for name in view.config if view.keys.get(name) is None), 50)
    return any({GLOBAL, MICRO} & {*view.keys.suggestions(name)} for name in unknown)


@rule("BAT005", Severity.INFO)
def batch_binds_the_ranks(view: View) -> Iterator[Problem]:
    """A global batch or a group size that fits only some numbers of ranks.

    DeepSpeed refuses the config on others (runtime/config.py, _batch_assertion): a file that is shared by jobs of
    different sizes gives the micro batch and the accumulation only. With `--world-size` the product itself is checked.

    Example:
        {"train_batch_size": 16, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}

    Instead:
        {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}

    Since: DeepSpeed 0.14
    """
    if view.kind != "ds_config" or view.devices is not None:
        return
    micro, accumulation, total = view.micro_batch, view.accumulation, view.global_batch
    if total is not None and total % ((micro or 1) * (accumulation or 1)) == 0:
        share = total // ((micro or 1) * (accumulation or 1))
        exactly = micro is not None and accumulation is not None
        yield Problem(
            path=GLOBAL,
            message=f"{GLOBAL} {total} is right on exactly {share} data-parallel rank{'s' if share != 1 else ''}"
            if exactly
            else f"{GLOBAL} {total} is right where the number of data-parallel ranks divides {share}",
            help=f"leave {GLOBAL} out to follow the ranks, or lint with --world-size",
        )
    for path, size in (
        ("tensor_parallel.autotp_size", view.tensor_parallel),
        ("sequence_parallel_size", view.sequence_parallel),
    ):
        if size is not None and size > 1:
            yield Problem(
                path=path,
                message=f"the number of ranks has to be a multiple of {size}",
                help="lint with --world-size to check it",
            )


@rule("BAT006", Severity.WARNING)
def sequence_groups_are_made(view: View) -> Iterator[Problem]:
    """Sequence parallelism without the groups of ranks that share a sequence.

    DeepSpeed divides the batch by sequence_parallel_size (runtime/config.py), but makes the groups only where
    data_parallel_size stands beside it (__init__.py, initialize) or where the script passes an `mpu` that has them, as
    Ulysses does. Without either every rank trains on sequences of its own, and the global batch is counted too small.

    Example:
        {"sequence_parallel_size": 2}

    Instead:
        {"sequence_parallel_size": 2, "data_parallel_size": 4}

    Options: --world-size 8
    Since: DeepSpeed 0.17
    """
    size, data = view.sequence_parallel, view.config.get("data_parallel_size")
    if view.kind != "ds_config" or size is None or size == 1:
        return
    if data is None:
        yield Problem(
            path="sequence_parallel_size",
            message="without data_parallel_size DeepSpeed makes no groups for sequence parallelism: it only counts the "
            "batch as if there were, unless the program passes an mpu",
            help="give data_parallel_size (ranks / sequence_parallel_size) too, or see that the program passes an mpu",
            severity=Severity.INFO if view.framework == "transformers" else None,
        )
    elif isinstance(data, int) and view.devices is not None and data * size != view.devices:
        yield Problem(
            path="data_parallel_size",
            message=f"data_parallel_size {data} x sequence_parallel_size {size} is not {view.devices}, the ranks",
            help=f"write {view.devices // size}"
            if view.devices % size == 0
            else "make sequence_parallel_size a divisor",
            severity=Severity.ERROR,
        )


@rule("BAT007")
def unmanaged_accumulation_fits(view: View) -> Iterator[Problem]:
    """Accumulation that the script manages itself, with a setting that DeepSpeed does not combine it with.

    With managed_gradient_accumulation false DeepSpeed asserts that overlap_comm is on only from stage 2 on, and that
    DeepCompile is off (runtime/engine.py, _do_sanity_check).

    Example:
        {"managed_gradient_accumulation": false, "zero_optimization": {"stage": 1, "overlap_comm": true}}

    Instead:
        {"managed_gradient_accumulation": false, "zero_optimization": {"stage": 1, "overlap_comm": false}}

    Since: DeepSpeed 0.19.4
    """
    if view.config.get("managed_gradient_accumulation") is not False or not view.since("0.19.4"):
        return
    if view.stage in (0, 1) and truth(lookup(view.config, "zero_optimization.overlap_comm")):
        yield Problem(
            path="zero_optimization.overlap_comm",
            message=f"DeepSpeed refuses overlap_comm at stage {view.stage} with managed_gradient_accumulation: false",
            help="write false, or take stage 2",
        )
    if truth(lookup(view.config, "compile.deepcompile")):
        yield Problem(
            path="compile.deepcompile",
            message="DeepSpeed refuses DeepCompile with managed_gradient_accumulation: false",
            help="leave one of the two out",
        )


def _ranks(view: View) -> int | None:
    """The ranks that the batch is counted by; DeepSpeed counts before it takes tensor parallelism off them."""
    if view.kind == "recipe" or view.devices is None:
        return view.data_parallel
    shards = view.sequence_parallel or 1
    return view.devices // shards if view.devices % shards == 0 else None


def _nearest(total: int, unit: int, name: str) -> str:
    """The multiples of `unit` around `total`, each with the factor that gives it."""
    below, above = total // unit, total // unit + 1
    options = [f"{factor * unit} ({name} {factor})" for factor in (below, above) if factor > 0]
    return "nearest: " + " or ".join(options)


def _near_divisors(number: int, near: int) -> list[int]:
    divisors = {d for i in range(1, isqrt(number) + 1) if number % i == 0 for d in (i, number // i)}
    return sorted(sorted(divisors, key=lambda d: (abs(d - near), d))[:4])
