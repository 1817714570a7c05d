"""Ports that a job opens on this host: that of rank 0, and the range of HCCL."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

from dsgen.doctor.check import Check, Subject, ok, skipped, warning

_MASTER = 29500
HCCL_PORTS = 32
"""HCCL takes so many from HCCL_IF_BASE_PORT on: documentation of hicann/hccl (60000 to 60031)."""
_HCCL_BASE = 60000


def check_ports(subject: Subject) -> Iterator[Check]:
    """Whether the ports of the job are free here."""
    yield _master(subject)
    if subject.kind != "npu":
        yield skipped("ports.hccl", "no NPU, no HCCL")
    elif subject.simulated:
        yield skipped("ports.hccl", "simulated NPU: its HCCL opens no port")
    else:
        yield _hccl(subject)


def is_free(port: int) -> bool:
    """Whether nobody listens on a TCP port; a connection that is just being closed does not count."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
            probe.listen(1)
        except OSError:
            return False
    return True


def _master(subject: Subject) -> Check:
    name, plan = "ports.master", subject.plan
    said = subject.job_variable("MASTER_PORT")
    if said is None and plan is not None and plan.nodes == 1:
        return ok(name, "launch.sh takes a free one")
    port = _port(said) if said is not None else _MASTER
    if port is None:
        return subject.wrong(name, f"MASTER_PORT={said} is no port", "unset it, or take a number from 1024 to 65535")
    where = f"; rank 0 runs on {plan.hosts[0]}" if plan is not None and plan.hosts else ""
    words = f"MASTER_PORT={port}" if said is not None else f"{port} (the default of jobs of several nodes)"
    if is_free(port):
        return ok(name, f"{words} is free on this host{where}")
    return subject.wrong(
        name,
        f"{words} is taken on this host{where}: rank 0 ends with EADDRINUSE",
        f"export MASTER_PORT={_free_near(port)}, or end the job that holds it (ss -ltnp 'sport = :{port}')",
    )


def _hccl(subject: Subject) -> Check:
    name = "ports.hccl"
    said = subject.job_variable("HCCL_IF_BASE_PORT")
    base = _port(said) if said is not None else _HCCL_BASE
    if base is None or not 1024 <= base <= 65520:
        found = f"HCCL_IF_BASE_PORT={said} is outside 1024 to 65520"
        return subject.wrong(name, found, "unset it, or take a number in that range")
    last = min(base + HCCL_PORTS - 1, 65535)
    taken = [port for port in range(base, last + 1) if not is_free(port)]
    if taken:
        return subject.wrong(
            name,
            f"HCCL's ports {base} to {last}: {', '.join(map(str, taken))} taken on this host (EI0019)",
            "end the other job, or give this one a range of its own: export HCCL_IF_BASE_PORT=N",
        )
    found = f"{base} to {last} are free on this host"
    outgoing = re.findall(r"\d+", subject.probe.read("/proc/sys/net/ipv4/ip_local_port_range") or "")
    reserved = subject.probe.read("/proc/sys/net/ipv4/ip_local_reserved_ports") or ""
    overlaps = len(outgoing) == 2 and int(outgoing[0]) <= last and base <= int(outgoing[1])
    if overlaps and not reserved.strip() and subject.plan is not None and subject.plan.nodes > 1:
        return warning(
            name,
            f"{found}, but outgoing connections ({outgoing[0]} to {outgoing[1]}) may take one at any moment",
            f"sysctl -w net.ipv4.ip_local_reserved_ports={base}-{last}",
        )
    return ok(name, found)


def _port(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[0-9]{1,5}", text) and 0 < int(text) < 65536 else None


def _free_near(port: int) -> int:
    return next((other for other in range(port + 1, min(port + 200, 65536)) if is_free(other)), port)
