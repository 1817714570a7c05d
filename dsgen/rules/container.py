"""The container that a job is started in."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View

# Reference grammar of images: registry and path, tag, digest.
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*(@sha256:[0-9a-f]{64})?")


@rule("CON001")
def nodes_are_started_one_by_one(view: View) -> Iterator[Problem]:
    """Several nodes in containers, which DeepSpeed's launcher cannot start.

    It reaches the other nodes by ssh, which ends on the host, outside the container. A bridge network is as bad: the
    nodes do not reach each other through it.

    Example (recipe):
        hardware: {device: ascend-910b3-64g, nodes: 2, hosts: [node-a, node-b]}
        container: registry.example/cann:9.1.0
        launcher: deepspeed

    Instead:
        hardware: {device: ascend-910b3-64g, nodes: 2, hosts: [node-a, node-b]}
        container: registry.example/cann:9.1.0
        launcher: torchrun

    Since: dsgen 0.1
    """
    if view.container_image is None or (view.nodes or 1) == 1:
        return
    if view.launcher in (None, "deepspeed"):
        yield Problem(
            path="launcher",
            message="a job of several nodes in containers cannot be started by DeepSpeed's launcher: its ssh ends on "
            "the other hosts, outside their containers",
            help="write launcher: torchrun, and start container.sh on every node",
        )
    if view.container_network == "bridge":
        yield Problem(
            path="container.network",
            message="the nodes do not reach each other through a bridge network",
            help="write network: host",
        )


@rule("CON002")
def image_is_a_name(view: View) -> Iterator[Problem]:
    """A name of an image that no registry can hold.

    The engine would refuse it, or read it as options of its own.

    Example (recipe):
        container: "-v /:/host"

    Instead:
        container: registry.example/cann:9.1.0

    Since: dsgen 0.1
    """
    if view.container_image is not None and not IMAGE.fullmatch(view.container_image):
        yield Problem(
            path="container.image",
            message=f"{view.container_image!r} is no name of an image",
            help="write it as in `docker pull`: name:tag, or registry/name:tag",
        )


@rule("CON003")
def mounts_are_absolute(view: View) -> Iterator[Problem]:
    """A mount that is not PATH, PATH:PLACE or PATH:PLACE:ro with absolute paths.

    A folder of the host is bound to a place in the container, and the engine takes absolute paths only: it knows no
    folder that others could count from.

    Example (recipe):
        container: {image: "registry.example/cann:9.1.0", mounts: ["data:/data"]}

    Instead:
        container: {image: "registry.example/cann:9.1.0", mounts: ["/home/me/data:/data"]}

    Since: dsgen 0.1
    """
    for index, mount in enumerate(view.container_mounts):
        if not _is_mount(mount):
            yield Problem(
                path=f"container.mounts[{index}]",
                message=f"{mount!r} is no mount",
                help="write /path, /path:/place or /path:/place:ro",
            )


@rule("CON004", Severity.WARNING)
def runtime_is_for_ascend(view: View) -> Iterator[Problem]:
    """The Ascend Docker Runtime on a device that is no Ascend NPU.

    It hands NPUs to a container and does nothing for other devices.

    Example (recipe):
        hardware: {device: cuda-a100-80g, per_node: 8}
        container: {image: "registry.example/cuda:12", devices: runtime}

    Instead:
        hardware: {device: cuda-a100-80g, per_node: 8}
        container: {image: "registry.example/cuda:12"}

    Since: dsgen 0.1
    """
    if view.container_devices == "runtime" and view.device is not None and view.device.kind != "npu":
        yield Problem(
            path="container.devices",
            message=f"runtime does nothing: {view.device.id} is no Ascend NPU",
            help="remove it",
            on_key=True,
        )


@rule("CON005")
def engine_takes_mounts(view: View) -> Iterator[Problem]:
    """A mount that docker and podman refuse.

    One over the container's own root would hide everything that the image holds; a comma, a quotation mark or a line
    break in its path is not possible, because --mount is read as a line of CSV, which has them for itself.

    Example (recipe):
        container: {image: "registry.example/cann:9.1.0", mounts: ["/data,raw"]}

    Instead:
        container: {image: "registry.example/cann:9.1.0", mounts: ["/data"]}

    Since: dsgen 0.1
    """
    for index, mount in enumerate(view.container_mounts):
        if not _is_mount(mount):
            continue
        if _place(mount) == "/":
            yield Problem(
                path=f"container.mounts[{index}]",
                message=f"{mount!r} would hide everything that the image holds: the engine mounts nothing at /",
                help="name a folder in the container: /path:/place",
            )
        elif found := re.search(r'[",\r\n]', mount):
            yield Problem(
                path=f"container.mounts[{index}]",
                message=f"{mount!r} holds {found[0]!r}, which the engine cannot take in the path of a mount",
                help="rename the folder, or mount the one above it",
            )


@rule("CON006")
def mounts_have_places_of_their_own(view: View) -> Iterator[Problem]:
    """Two mounts at one place of the container.

    The engine refuses to start it.

    Example (recipe):
        container: {image: "registry.example/cann:9.1.0", mounts: ["/home/a:/data", "/home/b:/data"]}

    Instead:
        container: {image: "registry.example/cann:9.1.0", mounts: ["/home/a:/data", "/home/b:/more"]}

    Since: dsgen 0.1
    """
    first: dict[str, str] = {}
    for index, mount in enumerate(view.container_mounts):
        if not _is_mount(mount):
            continue
        place = _place(mount)
        if place in first:
            yield Problem(
                path=f"container.mounts[{index}]",
                message=f"{mount!r} stands at the same place of the container as {first[place]!r}",
                help="remove one, or give it another place: /path:/place",
            )
        first.setdefault(place, mount)


def _is_mount(mount: str) -> bool:
    parts = mount.split(":")
    return len(parts) <= 3 and all(part.startswith("/") for part in parts[:2]) and parts[2:] in ([], ["ro"], ["rw"])


def _place(mount: str) -> str:
    """Where a mount appears in the container: `/a` of `/data:/a/:ro`."""
    source, _, rest = mount.partition(":")
    return "/" + posixpath.normpath(rest.partition(":")[0] or source).lstrip("/")
