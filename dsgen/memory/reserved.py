"""What torch's caching allocator takes from the device for what tensors hold.

From replays of training steps through a model of that allocator (rounding to 512 bytes, segments of 2 and 20 MiB, best
fit, splitting and merging, unused segments given back before an allocation fails; benchmarks/allocator_replay.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from dsgen.memory.job import Job
from dsgen.memory.phases import flattens_on_device
from dsgen.memory.report import ACTIVATIONS, LOSS, Phase

NEEDED = (1.0, 1.2)
"""Bytes that the allocator gets by with for each byte that comes and goes: 1.01 to 1.12 with shapes that never change,
up to 1.18 with lengths that vary; 1.1 to 1.3 in two replays of the ZeRO-2 engine."""
NEEDED_SOURCE = "replays of training steps through a model of torch's caching allocator"
VARYING = 2.0
"""Bytes that it takes for each byte of activations and logits where lengths vary and there is room: 1.0 to 2.4 in 25
steps, more in longer runs, as each longer batch finds no free block that is large enough."""


def needed_bytes(allocated: int, steady: int) -> int:
    """What the allocator gets by with; `steady` is what is held between steps."""
    return allocated + round((NEEDED[1] - 1) * (allocated - steady))


def with_room_bytes(job: Job, phases: Sequence[Phase], steady: int, varying: bool) -> int:
    """What it takes when the device has room, and what its tools then show: it gives nothing back unless it must.

    Blocks are used again for what is not larger, so the forward and backward passes share theirs. Two kinds cannot:
    DeepSpeed's flat buffers of the step are larger than any block of the passes and stay beside them; and the weights
    that stages 1 and 2 had before they were flattened stay as blocks of their size (runtime/zero/stage_1_and_2.py,
    __init__, empties the cache before flattening only), which the passes fill. Replays of the engine took 40.8 GiB for
    28.3 (7B at stage 2, 8 ranks) and 79.0 for 54.6 (13B): this says 40.9 and 79.1.
    """
    left_over = 0
    if job.stage in (1, 2) and flattens_on_device(job):
        left_over = job.element * job.trained.elements
    most = passes = step = 0
    for phase in phases:
        held = phase.device.device_bytes
        most = max(most, held)
        passing = max(0, held - steady)
        if phase.name in ("forward", "loss", "backward"):
            lengthwise = phase.device.device.get(ACTIVATIONS, 0) + phase.device.device.get(LOSS, 0)
            more = (VARYING - NEEDED[1]) * lengthwise if varying else 0
            passes = max(passes, round(NEEDED[1] * passing + more))
        elif phase.name == "step":
            step = passing
    return max(most, steady + max(left_over, passes) + step)
