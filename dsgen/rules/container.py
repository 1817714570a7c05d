"""The container that a job is started in."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View

# Reference grammar of images: registry and path, tag, digest.
IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]*(@sha256:[0-9a-f]{64})?")


@rule("CON001")
def nodes_are_started_one_by_one(view: View) -> Iterator[Problem]:
    """DeepSpeed's launcher reaches the other nodes by ssh, which ends on the host, outside the container."""
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
    """A name of an image that no registry can hold."""
    if view.container_image is not None and not IMAGE.fullmatch(view.container_image):
        yield Problem(
            path="container.image",
            message=f"{view.container_image!r} is no name of an image",
            help="write it as in `docker pull`: name:tag, or registry/name:tag",
        )


@rule("CON003")
def mounts_are_absolute(view: View) -> Iterator[Problem]:
    """A mount that is not PATH, PATH:PLACE or PATH:PLACE:ro with absolute paths."""
    for index, mount in enumerate(view.container_mounts):
        parts = mount.split(":")
        if (
            len(parts) > 3
            or not all(part.startswith("/") for part in parts[:2])
            or parts[2:] not in ([], ["ro"], ["rw"])
        ):
            yield Problem(
                path=f"container.mounts[{index}]",
                message=f"{mount!r} is no mount",
                help="write /path, /path:/place or /path:/place:ro",
            )


@rule("CON004", Severity.WARNING)
def runtime_is_for_ascend(view: View) -> Iterator[Problem]:
    """The Ascend Docker Runtime on a device that is no Ascend NPU."""
    if view.container_devices == "runtime" and view.device is not None and view.device.kind != "npu":
        yield Problem(
            path="container.devices",
            message=f"runtime does nothing: {view.device.id} is no Ascend NPU",
            help="remove it",
            on_key=True,
        )
