"""The devices: how many, which, healthy, and with free memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from dsgen.catalog.devices import Device, devices_named
from dsgen.doctor.check import Check, Subject, error, not_understood, ok, skipped, warning
from dsgen.doctor.mask import MASKS, masked
from dsgen.doctor.npu_smi import parse_count
from dsgen.doctor.seen import Seen, Sight, failure, see
from dsgen.doctor.words import listed, size

_TOOLS = {"npu": "npu-smi", "cuda": "nvidia-smi"}
_ALARMS = ("alarm", "critical")


def check_devices(subject: Subject) -> Iterator[Check]:
    """What npu-smi or nvidia-smi says about the devices."""
    sight, tool = see(subject.probe, subject.kind), _TOOLS[subject.kind]
    if not sight.devices:
        yield _nothing_seen(subject, sight, tool)
        return
    if sight.unread:
        yield not_understood(
            "devices.tool",
            f"{tool} ({sight.driver}) printed {len(sight.unread)} lines in an unknown form, the first: "
            f"{sight.unread[0][:120]!r}",
            f"compare with `{tool} info` yourself" if subject.kind == "npu" else f"compare with `{tool}` yourself",
        )
    else:
        yield ok("devices.tool", f"{tool} answers, driver {sight.driver or 'version not said'}")
    yield _count(subject, sight.devices)
    yield _kind(subject, sight.devices)
    yield _health(subject, sight.devices)
    yield _memory(subject, sight.devices)


def _nothing_seen(subject: Subject, sight: Sight, tool: str) -> Check:
    if not subject.probe.live and sight.output.missing:
        return skipped("devices.tool", f"no output of {tool} was captured")
    why = failure(sight, tool)
    if why is not None:
        return subject.wrong("devices.tool", *why)
    return not_understood(
        "devices.tool",
        f"{tool} answers in a form that dsgen does not know: devices, health and memory are not judged",
        f"look at `{tool}` yourself, and please report its output",
    )


def _count(subject: Subject, devices: Sequence[Seen]) -> Check:
    name, plan = "devices.count", subject.plan
    found = f"{len(devices)} {'NPUs' if subject.kind == 'npu' else 'GPUs'}"
    if subject.kind == "npu" and not subject.quick:
        counted = parse_count(subject.probe.run("npu-smi", "info", "-l").text)
        if counted is not None and counted != len(devices):
            return subject.wrong(
                name,
                f"npu-smi info shows {len(devices)} devices, and npu-smi info -l counts {counted}",
                "a device may have dropped out: check dmesg and `npu-smi info -t health -i N`",
            )
    if plan is None:
        return ok(name, found)
    if len(devices) < plan.per_node:
        return error(
            name,
            f"{found}, and the recipe needs {plan.per_node} on each node",
            f"take a machine or a container with more, or --set hardware.per_node={len(devices)}",
        )
    packages = plan.device.generation == "A3" and plan.per_node % 2
    if packages:
        return warning(
            name, f"{found}; {plan.per_node} dies cut a card of two in half", "take an even number of dies on A3"
        )
    return ok(name, f"{found}, the recipe needs {plan.per_node}")


def _kind(subject: Subject, devices: Sequence[Seen]) -> Check:
    name, plan = "devices.kind", subject.plan
    names = sorted({device.name for device in devices})
    known = {each: _catalogued(each) for each in names}
    if not all(known.values()):
        strange = [each for each in names if not known[each]]
        return not_understood(
            name,
            f"{listed(strange)}: not in the catalogue, so bf16 and memory are not compared",
            "`dsgen devices` lists what is known; take the nearest in the recipe",
        )
    ids = sorted({device.id for each in known.values() for device in each})
    found = f"{listed(names)}: {' or '.join(ids)}"
    odd = [device for device in devices if not _memory_fits(device, known[device.name])]
    if len(names) > 1:
        return warning(name, f"different devices side by side: {found}", "give a job devices of one kind only")
    if odd:
        return warning(
            name,
            f"{found}, but {odd[0].place} shows {size(odd[0].total_bytes or 0)} of memory",
            "go by the memory that is there, not by the name",
        )
    if plan is None or plan.device.id in ids:
        return ok(name, found)
    return _other_device(name, found, plan.device, known[names[0]], plan.precision)


def _other_device(name: str, found: str, wanted: Device, here: Sequence[Device], precision: str) -> Check:
    remedy = f"write the device that is here: --set hardware.device={here[0].id}"
    if precision == "bf16" and not any(device.bf16 for device in here):
        return error(
            name, f"{found}, which has no bf16; the recipe is bf16, for {wanted.id}", f"{remedy}, and take fp16"
        )
    least, most = wanted.usable_bytes or 0, max((device.usable_bytes or 0) for device in here)
    if most and most < least:
        found = f"{found} with {size(most)} usable; the recipe counts on {size(least)} of {wanted.id}"
        return error(name, found, remedy)
    return warning(name, f"{found}; the recipe's numbers are for {wanted.id}", remedy)


def _catalogued(reported: str) -> tuple[Device, ...]:
    return devices_named(reported) or devices_named(reported.replace(" ", ""))


def _memory_fits(seen: Seen, candidates: Sequence[Device]) -> bool:
    """Whether the memory that the tool shows is about that of a device of that name."""
    sizes = [device.memory_bytes for device in candidates if device.memory_bytes is not None]
    return not sizes or not seen.total_bytes or any(0.9 < seen.total_bytes / size < 1.1 for size in sizes)


def _health(subject: Subject, devices: Sequence[Seen]) -> Check:
    name = "devices.health"
    if subject.kind != "npu":
        return skipped(name, "nvidia-smi has no word for it; look for Xid in dmesg")
    bad = [device for device in devices if device.health.lower() != "ok"]
    if not bad:
        return ok(name, f"OK on all {len(devices)}")
    words = ", ".join(f"{device.place}: {device.health or 'not said'}" for device in bad)
    remedy = "`npu-smi info -t health -i N` names the fault; take the device out of the job, or restart it"
    used = {device.index for device in chosen(subject, devices)}
    if any(device.health.lower() in _ALARMS and device.index in used for device in bad):
        return error(name, words, remedy)
    return warning(name, words, remedy)


def chosen(subject: Subject, devices: Sequence[Seen]) -> list[Seen]:
    """The devices that a job would take: the masked ones, else the first; as many as the recipe needs."""
    mask = masked(subject)
    shown = [device for device in devices if mask is None or device.index in mask]
    return shown if subject.plan is None else shown[: subject.plan.per_node]


def _memory(subject: Subject, devices: Sequence[Seen]) -> Check:
    name = "devices.memory"
    taken = chosen(subject, devices)
    held = [device for device in taken if device.held]
    if held:
        return subject.wrong(name, "; ".join(_holding(device) for device in held), _make_room(subject, devices, held))
    free = [
        device.total_bytes - device.used_bytes
        for device in taken
        if device.total_bytes is not None and device.used_bytes is not None
    ]
    if not free:
        return skipped(name, "how much memory is free is not said")
    others = [device.place for device in devices if device.held and device not in taken]
    found = f"{size(min(free))} or more of each device are free"
    if others:
        found += f" ({listed(others)} held by others, not used by this job)"
    if subject.plan is not None:
        found += "; the recipe's need is not compared: there is no estimate of it here"
    return ok(name, found)


def _holding(device: Seen) -> str:
    who = ", ".join(
        f"{holder.name or 'a process without a name'} (pid {holder.pid}"
        + (f", {size(holder.bytes)}" if holder.bytes is not None else "")
        + ")"
        for holder in device.holders
    )
    amount = f"{size(device.used_bytes or 0)} of {size(device.total_bytes or 0)} in use"
    return f"{device.place}: {amount} by {who or 'a process that is not listed (another container?)'}"


def _make_room(subject: Subject, devices: Sequence[Seen], held: Sequence[Seen]) -> str:
    pids = sorted({holder.pid for device in held for holder in device.holders})
    here = [pid for pid in pids if Path(f"/proc/{pid}").is_dir()] if subject.probe.live else pids
    if here:
        remedy = f"when it is nobody's job, kill {' '.join(map(str, here))}, and wait 10 s before the next start"
    else:
        remedy = "it does not run in this container: look for it on the host or in the other containers"
    free = [device.index for device in devices if not device.held]
    plan = subject.plan
    if plan is not None and plan.nodes == 1 and len(free) >= plan.per_node:
        remedy += f"; or take others: export {MASKS[subject.kind]}={','.join(map(str, free[: plan.per_node]))}"
    return remedy
