"""What a container (or a bare machine) has to show to a job: device nodes, the driver's folders, shared memory."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from dsgen.doctor.check import Check, Subject, ok, skipped, warning
from dsgen.doctor.probe import Probe
from dsgen.doctor.words import GIB, size

_NODES = ("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc")
_MOUNTS = ("/usr/local/Ascend/driver", "/usr/local/dcmi")
_LEAST_SHARED = GIB
_CPU_RANK_BYTES = 69 * 10**6
"""Buffer of one CPU rank: DeepSpeed 0.19.8, csrc/cpu/comm/shm.cpp (struct allreduce_workspace)."""


def check_container(subject: Subject) -> Iterator[Check]:
    """Device nodes and permissions, the driver's mounts, and the size of /dev/shm."""
    where = in_container(subject.probe)
    if subject.kind == "npu" and not subject.simulated:
        yield _nodes(subject, where)
        yield _mounts(subject, where)
    yield _shared(subject, where)


def in_container(probe: Probe) -> str | None:
    """What tells that this is a container; None on a bare machine."""
    for mark in ("/.dockerenv", "/run/.containerenv"):
        if probe.glob(mark):
            return mark
    if probe.variable("KUBERNETES_SERVICE_HOST"):
        return "KUBERNETES_SERVICE_HOST"
    match = re.search(r"docker|kubepods|containerd|libpod|lxc", probe.read("/proc/1/cgroup") or "")
    return match[0] if match else None


def _nodes(subject: Subject, where: str | None) -> Check:
    name, probe = "container.devices", subject.probe
    devices = probe.glob("/dev/davinci[0-9]*")
    missing = [node for node in _NODES if not probe.glob(node)]
    if not devices:
        missing.insert(0, "/dev/davinci0 and the others")
    if missing:
        remedy = (
            "start the container with " + " ".join(f"--device {node.split()[0]}" for node in missing)
            if where
            else "load the NPU driver (it makes them), or go to a machine with NPUs"
        )
        return subject.wrong(name, f"missing: {', '.join(missing)}", remedy)
    denied = [node for node in (*devices, *_NODES) if not probe.may_use(node)]
    if denied:
        return subject.wrong(
            name,
            f"no right to read and write {', '.join(denied)}",
            "add the user to the group that owns them (ls -l /dev/davinci0; usually HwHiAiUser), and log in again",
        )
    found = f"{len(devices)} NPUs (/dev/davinci*) and the manager's devices"
    if subject.plan is not None and len(devices) < subject.plan.per_node:
        remedy = "give the container more --device /dev/davinciN" if where else "take a machine with more NPUs"
        return subject.wrong(name, f"{found}; the recipe needs {subject.plan.per_node}", remedy)
    return ok(name, found)


def _mounts(subject: Subject, where: str | None) -> Check:
    name, probe = "container.driver", subject.probe
    if where is None:
        return skipped(name, "not in a container")
    missing = [folder for folder in _MOUNTS if not probe.glob(folder)]
    options = [f"-v {folder}:{folder}" for folder in missing]
    if not probe.has_program("npu-smi"):
        missing.append("npu-smi")
        options.append("-v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi")
    if missing:
        return subject.wrong(
            name, f"not mounted in this container: {', '.join(missing)}", f"start it with {' '.join(options)}"
        )
    return ok(name, f"{', '.join(_MOUNTS)} and npu-smi are there")


def _shared(subject: Subject, where: str | None) -> Check:
    name, plan, folder = "container.shared_memory", subject.plan, Path("/dev/shm")
    try:
        total, _, free = shutil.disk_usage(folder)
    except OSError:
        return subject.wrong(name, f"{folder} is not there: ranks and data loaders share memory in it", "mount a tmpfs")
    found = f"/dev/shm: {size(free)} of {size(total)} free"
    remedy = (
        "start the container with --ipc=host, or --shm-size=16g" if where else f"mount -o remount,size=16g {folder}"
    )
    if plan is not None and plan.kind == "cpu" and plan.nodes == 1 and free < plan.per_node * _CPU_RANK_BYTES:
        need = size(plan.per_node * _CPU_RANK_BYTES)
        return subject.wrong(name, f"{found}, and {plan.per_node} CPU ranks take {need} of it: bus errors", remedy)
    if total < _LEAST_SHARED:
        return warning(name, f"{found}: data loaders and collectives on the host end with bus errors", remedy)
    return ok(name, found)
