"""Devices, nodes and hosts."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?\Z")


@rule("HWD001")
def nodes_match_hosts(view: View) -> Iterator[Problem]:
    """The number of nodes is not the number of hosts.

    The hostfile holds one line for each host, and the launcher starts ranks on these alone; the batch was computed for
    the nodes.

    Example (recipe):
        hardware: {device: ascend-910b3-64g, nodes: 4, hosts: [node-a, node-b]}

    Instead:
        hardware: {device: ascend-910b3-64g, nodes: 2, hosts: [node-a, node-b]}

    Since: dsgen 0.1
    """
    if view.hosts is None or view.nodes is None or len(view.hosts) == view.nodes:
        return
    yield Problem(
        path="hardware.hosts",
        message=f"hosts named: {len(view.hosts)}; nodes: {view.nodes}",
        help="name one host per node, or leave nodes out",
    )


@rule("HWD002")
def node_has_the_devices(view: View) -> Iterator[Problem]:
    """More devices per node than a server of that kind has.

    The ranks beyond the last device would fail when they choose theirs.

    Example (recipe):
        hardware: {device: ascend-910b3-64g, per_node: 16}

    Instead:
        hardware: {device: ascend-910b3-64g, per_node: 8, nodes: 2, hosts: [node-a, node-b]}

    Since: dsgen 0.1
    """
    device = view.device
    if device is None or device.kind == "cpu" or view.per_node is None or view.per_node <= device.devices_per_server:
        return
    yield Problem(
        path="hardware.per_node",
        message=f"a server holds {device.devices_per_server} {device.id}, not {view.per_node}",
        help=f"write at most {device.devices_per_server} and take more nodes",
    )


@rule("HWD003", Severity.WARNING)
def dies_come_in_pairs(view: View) -> Iterator[Problem]:
    """An odd number of A3 dies.

    Two dies share a package, each of them a device of its own, and schedulers hand out whole packages.

    Example (recipe):
        batch: {sequence_length: 2048, micro: 1, accumulation: 8}
        hardware: {device: ascend-910c-64g, per_node: 3}

    Instead:
        batch: {sequence_length: 2048, micro: 1, accumulation: 8}
        hardware: {device: ascend-910c-64g, per_node: 4}

    Since: dsgen 0.1
    """
    if view.device is None or view.device.generation != "A3" or not view.per_node or view.per_node % 2 == 0:
        return
    yield Problem(
        path="hardware.per_node",
        message=f"{view.per_node} dies: on A3 two dies share a package and schedulers hand out whole packages",
        help="write an even number",
    )


@rule("HWD004")
def host_names_are_plain(view: View) -> Iterator[Problem]:
    """A host name that DeepSpeed's hostfile and filters cannot carry.

    `user@host` breaks at the @ and IPv6 addresses at the colon of --include (launcher/runner.py); a name twice is a
    ValueError there.

    Example (recipe):
        hardware: {device: ascend-910b3-64g, nodes: 2, hosts: [node-a, admin@node-b]}

    Instead:
        hardware: {device: ascend-910b3-64g, nodes: 2, hosts: [node-a, node-b]}

    Since: DeepSpeed 0.14
    """
    seen = Counter(view.hosts or ())
    for index, host in enumerate(view.hosts or ()):
        if not _HOST.match(host):
            yield Problem(
                path=f"hardware.hosts[{index}]",
                message=f"{host!r} is no host name that a hostfile can carry",
                help="write a plain name or an IPv4 address; put users and ports into ~/.ssh/config",
            )
        elif seen[host] > 1:
            seen[host] = 0
            yield Problem(
                path=f"hardware.hosts[{index}]",
                message=f"host {host!r} is named more than once",
                help="name every host once; per_node says how many ranks it runs",
            )


@rule("HWD005", Severity.WARNING)
def hosts_are_named(view: View) -> Iterator[Problem]:
    """Several nodes without host names.

    The hostfile can only hold placeholders, and the job starts nowhere until somebody replaces them.

    Example (recipe):
        hardware: {device: ascend-910b3-64g, nodes: 2}

    Instead:
        hardware: {device: ascend-910b3-64g, nodes: 2, hosts: [node-a, node-b]}

    Since: dsgen 0.1
    """
    if (view.nodes or 1) > 1 and view.hosts is None:
        yield Problem(
            path="hardware.nodes",
            message=f"{view.nodes} nodes and no hosts: the hostfile will hold the placeholders node-1 to "
            f"node-{view.nodes}",
            help="give hardware.hosts, the master first",
        )


@rule("HWD006")
def cpu_has_the_ranks(view: View) -> Iterator[Problem]:
    """More ranks on a CPU than any host has cores.

    It is a slip of a digit: every rank is a process of its own, which wants at least a core.

    Example (recipe):
        hardware: {device: cpu, per_node: 320}

    Instead:
        hardware: {device: cpu, per_node: 32}

    Since: dsgen 0.1
    """
    if view.device is not None and view.device.kind == "cpu" and (view.per_node or 1) > 256:
        yield Problem(
            path="hardware.per_node",
            message=f"{view.per_node} CPU ranks on one host",
            help="write at most 256",
        )


@rule("HWD007")
def hosts_are_for_several_nodes(view: View) -> Iterator[Problem]:
    """A host name for a job of one node.

    Such a job runs where it is started, and no hostfile is written: the name does nothing, and the job may run on
    another machine than the one that is named.

    Example (recipe):
        hardware: {device: ascend-910b3-64g, hosts: [node-a]}

    Instead:
        hardware: {device: ascend-910b3-64g}

    Since: dsgen 0.1
    """
    if view.hosts is not None and view.nodes == 1 and len(view.hosts) == 1:
        yield Problem(
            path="hardware.hosts",
            message="hosts does nothing with one node: the job runs on the machine where it is started",
            help="remove it",
            on_key=True,
        )
