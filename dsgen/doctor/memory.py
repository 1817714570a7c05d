"""Memory of the host: what is there, what the control group leaves of it, and what the recipe needs at least."""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass

from dsgen.doctor.check import Check, Subject, ok, skipped, warning
from dsgen.doctor.probe import Probe
from dsgen.doctor.words import GIB, size
from dsgen.recipe.plan import Plan

_NO_LIMIT = 2**60
_OPTIMIZER_BYTES = {"adam": 12, "adamw": 12, "adagrad": 8, "lion": 8}
"""fp32 weights and moments of one parameter."""


@dataclass(frozen=True, kw_only=True)
class HostMemory:
    """Bytes of this host, as a job gets them."""

    total: int
    available: int
    limit: int | None
    """Of the control group; None without one."""
    limited_by: str = ""

    @property
    def most(self) -> int:
        """What a job could have if nothing else ran."""
        return self.total if self.limit is None else min(self.total, self.limit)


def host_memory(probe: Probe) -> HostMemory | None:
    """Memory by /proc/meminfo and the control groups of this process (versions 1 and 2); None when not said."""
    lines: list[tuple[str, str]] = re.findall(
        r"^(\w+): +(\d{1,15}) kB$", probe.read("/proc/meminfo") or "", re.MULTILINE
    )
    kib = {name: int(number) for name, number in lines}
    if "MemTotal" not in kib:
        return None
    total = kib["MemTotal"] * 1024
    available = kib.get("MemAvailable", kib["MemTotal"]) * 1024
    limit: int | None = None
    limited_by = ""
    for folder, limit_name, usage_name, cache_name in _groups(probe.read("/proc/self/cgroup") or ""):
        said = _number(probe.read(f"{folder}/{limit_name}"))
        if said is None or said >= min(_NO_LIMIT, total):
            continue
        used = _number(probe.read(f"{folder}/{usage_name}")) or 0
        statistics = probe.read(f"{folder}/memory.stat") or ""
        cache = re.search(rf"^{cache_name} (\d+)$", statistics, re.MULTILINE)
        # Cached files leave by themselves when memory gets short.
        available = min(available, max(0, said - used + (int(cache[1]) if cache else 0)))
        if limit is None or said < limit:
            limit, limited_by = said, f"{folder}/{limit_name}"
    return HostMemory(total=total, available=available, limit=limit, limited_by=limited_by)


def _groups(text: str) -> Iterator[tuple[str, str, str, str]]:
    """Folders of this process's memory control groups, from its own up, with the names of their files."""
    roots = []
    for line in text.splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            roots.append(("/sys/fs/cgroup", path, "memory.max", "memory.current", "inactive_file"))
        elif "memory" in controllers.split(","):
            limit, usage = "memory.limit_in_bytes", "memory.usage_in_bytes"
            roots.append(("/sys/fs/cgroup/memory", path, limit, usage, "total_inactive_file"))
    for root, path, limit, usage, cache in roots:
        parts = [part for part in path.split("/") if part]
        for length in range(len(parts), -1, -1):
            yield "/".join([root, *parts[:length]]), limit, usage, cache


def _number(text: str | None) -> int | None:
    return int(text.strip()) if text and re.fullmatch(r"\s*[0-9]{1,20}\s*", text) else None


def least_host_bytes(plan: Plan) -> tuple[int, str]:
    """What offloading keeps in the memory of each host at the very least, and of what it is made.

    Gradients, buffers and loading come on top: this is a floor, no estimate.
    """
    kind = str((plan.ds_config.get("optimizer") or {}).get("type", "")).lower()
    parts, total = [], 0
    if plan.offload_optimizer == "cpu":
        each = _OPTIMIZER_BYTES.get(kind, 4)
        total += each * plan.trainable_parameters // plan.nodes
        parts.append(f"optimizer states of {each} bytes per parameter")
    if plan.offload_parameters == "cpu":
        each = 4 if plan.precision == "fp32" else 2
        total += each * plan.parameters.total // plan.nodes
        parts.append(f"parameters of {each} bytes")
    return total, " and ".join(parts)


def check_memory(subject: Subject) -> Iterator[Check]:
    """Memory against what is offloaded to it, and the limits of this user."""
    yield _host(subject)
    yield _locked(subject)
    yield _files(subject)


def _host(subject: Subject) -> Check:
    name, plan = "memory.host", subject.plan
    memory = host_memory(subject.probe)
    if memory is None:
        return skipped(name, "/proc/meminfo does not say")
    found = f"{size(memory.available)} of {size(memory.total)} available"
    if memory.limit is not None:
        found += f", limited to {size(memory.limit)} by {memory.limited_by}"
    if plan is None:
        return ok(name, found)
    least, parts = least_host_bytes(plan)
    remedy = "end other programs, spread the job over more nodes, offload less, or raise the container's memory limit"
    if memory.available < least:
        return subject.wrong(
            name, f"{found}; offloading keeps {size(least)} here at least ({parts}): ranks are killed (-9)", remedy
        )
    said = plan.host_memory_bytes
    if said is not None and memory.most < 0.9 * said:
        return warning(
            name,
            f"{found}; hardware.host_memory of the recipe is {size(said)}",
            f"write what is there: --set hardware.host_memory={memory.most // GIB}GiB",
        )
    if least:
        found += f"; offloading keeps {size(least)} here at least ({parts}), gradients and buffers not compared"
    else:
        found += "; nothing is offloaded to it, the rest of the need is not compared: there is no estimate of it here"
    return ok(name, found)


def _locked(subject: Subject) -> Check:
    name, plan = "memory.locked", subject.plan
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    words = (
        "no limit of locked memory" if soft == resource.RLIM_INFINITY else f"locked memory: {size(soft)} per process"
    )
    nvme = plan is not None and "nvme" in (plan.offload_optimizer, plan.offload_parameters)
    # DeepSpeed 0.19.8, csrc/pin_memory/page_alloc.cpp: buffers for the disk are locked with mlock.
    if nvme and soft != resource.RLIM_INFINITY and soft < GIB:
        return warning(name, f"{words}, and offloading to a disk locks its buffers (mlock)", "ulimit -l unlimited")
    return ok(name, words)


def _files(subject: Subject) -> Check:
    name, plan = "limits.files", subject.plan
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Rank 0 keeps a few connections to every rank.
    need = 1024 if plan is None else max(1024, 4 * plan.world_size + 512)
    if soft != resource.RLIM_INFINITY and soft < need:
        highest = need if hard == resource.RLIM_INFINITY else min(need, hard)
        return warning(name, f"{soft} open files per process, and {need} may be needed", f"ulimit -n {highest}")
    return ok(name, f"{'no limit of' if soft == resource.RLIM_INFINITY else soft} open files per process")
