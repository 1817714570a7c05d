"""The mask of visible devices: in the form that DeepSpeed and torch_npu read, and naming devices that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from dsgen.doctor.check import Check, Subject, error, not_captured, ok, warning
from dsgen.doctor.container import in_container
from dsgen.doctor.seen import see
from dsgen.doctor.words import listed

MASKS: Mapping[str, str] = {"npu": "ASCEND_RT_VISIBLE_DEVICES", "cuda": "CUDA_VISIBLE_DEVICES"}
"""Kind of device -> the variable that its runtime and DeepSpeed's launcher read."""


def masked(subject: Subject) -> list[int] | None:
    """The devices that the mask names; None without one, or when it is no list of numbers."""
    said = subject.probe.variable(MASKS[subject.kind])
    return [int(word) for word in said.split(",")] if said and re.fullmatch(r"\d{1,6}(,\d{1,6})*", said) else None


def check_mask(subject: Subject) -> Iterator[Check]:
    """The mask of visible devices."""
    if not subject.probe.knows_environment:
        yield not_captured(subject.probe, "mask", "environment.txt")
        return
    existing = see(subject.probe, subject.kind).devices
    yield _mask(subject, MASKS[subject.kind], [device.index for device in existing])


def _mask(subject: Subject, variable: str, existing: Sequence[int]) -> Check:
    name, plan, said = "mask", subject.plan, subject.probe.variable(variable)
    if said is None:
        return _unset(subject, variable)
    # Several nodes that launch.sh is started on one by one have a mask each.
    if plan is not None and plan.nodes > 1 and plan.launcher == "deepspeed":
        return error(
            name,
            f"{variable}={said} has no effect on a job of {plan.nodes} nodes: launch.sh refuses to start",
            f"unset {variable}, and give the job whole nodes",
        )
    devices = masked(subject)
    if devices is None:
        return _no_list(subject, variable, said)
    if len(set(devices)) < len(devices):
        return error(name, f"{variable}={said} names a device twice", f"write each number once, or unset {variable}")
    if subject.kind == "npu" and devices != sorted(devices):
        found = f"{variable}={said}: the numbers must ascend, or ranks and devices are paired in another order"
        return error(name, found, f"export {variable}={','.join(map(str, sorted(devices)))}")
    gone = [device for device in devices if device not in existing]
    if existing and gone:
        return error(
            name,
            f"{variable}={said} names {listed(gone)}, and the devices here are "
            f"{listed(existing)}: error 107001, or fewer devices than ranks",
            f"name existing ones, or unset {variable}",
        )
    if plan is not None and len(devices) < plan.per_node:
        found = f"{variable}={said} shows {len(devices)} devices, and the recipe needs {plan.per_node}"
        return error(name, found, f"show more, or --set hardware.per_node={len(devices)}")
    return ok(name, f"{variable}={said}" + ("" if existing else "; which devices there are is not known"))


def _unset(subject: Subject, variable: str) -> Check:
    name, probe = "mask", subject.probe
    contained = not probe.live or in_container(probe) is not None
    others = (
        ["ASCEND_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"] if subject.kind == "npu" else ["ASCEND_RT_VISIBLE_DEVICES"]
    )
    for other in others:
        # Ascend's container runtime reads ASCEND_VISIBLE_DEVICES and leaves it in the container's environment.
        if probe.variable(other) and not (other == "ASCEND_VISIBLE_DEVICES" and contained):
            found = f"{other}={probe.variable(other)} is set, which hides no {subject.kind} device from torch"
            return warning(name, found, f"to choose devices, export {variable} instead")
    return ok(name, f"{variable} is not set: every device is visible")


def _no_list(subject: Subject, variable: str, said: str) -> Check:
    name, plan = "mask", subject.plan
    if not said.strip():
        return subject.wrong(name, f"{variable} is empty and hides every device", f"unset {variable}")
    if subject.kind == "cuda" and (plan is None or plan.launcher != "deepspeed"):
        return ok(name, f"{variable}={said}: not numbers, so not compared with the devices here")
    return error(
        name,
        f"{variable}={said} is no list of device numbers: reading stops at the first other character",
        f"write numbers with commas between them, such as 0,1, or unset {variable}",
    )
