"""Environment variables that the document sets: right values, no contradictions, and a way to every node."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsgen.catalog.environment import known_variable
from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
_ALLOCATOR = ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@rule("ENV001")
def name_is_a_variable(view: View) -> Iterator[Problem]:
    """A name that no shell takes for a variable."""
    for name in view.environment:
        if not _NAME.match(name):
            yield Problem(
                path=("environment", name),
                message=f"{name!r} is no name for an environment variable",
                help="write letters, digits and underscores, not starting with a digit",
                on_key=True,
            )


@rule("ENV002")
def value_is_one_line(view: View) -> Iterator[Problem]:
    """A value with a line break: DeepSpeed's environment file and its export to other nodes take one line each."""
    for name, value in view.environment.items():
        if "\n" in value or "\r" in value:
            yield Problem(
                path=("environment", name),
                message=f"the value of {name} holds a line break: it would be cut where nodes are told about it",
                help="write it on one line",
            )


@rule("ENV003")
def value_is_in_range(view: View) -> Iterator[Problem]:
    """A value that the variable's reader does not take: HCCL answers EI0001, the allocator a ValueError."""
    if view.device is None or view.device.kind != "npu":
        return
    for name, value in view.environment.items():
        variable = known_variable(name)
        if variable is not None and not variable.accepts(value):
            yield Problem(
                path=("environment", name),
                message=f"{name}: {value!r} is not {variable.expected}",
                help=variable.use or variable.meaning,
            )


@rule("ENV004")
def variables_agree(view: View) -> Iterator[Problem]:
    """Values that exclude each other."""
    environment = view.environment
    for name in _ALLOCATOR:
        settings = environment.get(name, "").replace(" ", "")
        if "expandable_segments:True" in settings:
            for other in ("max_split_size_mb", "garbage_collection_threshold"):
                if f"{other}:" in settings:
                    yield Problem(
                        path=("environment", name),
                        message=f"expandable_segments:True and {other} exclude each other: torch_npu refuses to start",
                        help=f"remove {other}",
                    )
    if all(name in environment for name in _ALLOCATOR):
        yield Problem(
            path=("environment", _ALLOCATOR[0]),
            message=f"{_ALLOCATOR[0]} and {_ALLOCATOR[1]} are two names of one setting: torch_npu refuses both at once",
            help=f"keep {_ALLOCATOR[0]}",
            on_key=True,
        )
    if view.device is None or view.device.kind != "npu":
        return
    for name, value in environment.items():
        variable = known_variable(name)
        less = known_variable(variable.greater_than) if variable and variable.greater_than else None
        if less is None:
            continue
        limit = environment.get(less.name, less.default or "")
        if value.isdecimal() and limit.isdecimal() and 0 < int(value) <= int(limit):
            yield Problem(
                path=("environment", name),
                message=f"{name} {value} must be more than {less.name} {limit}",
                help=f"write at least {int(limit) + 32}",
            )


@rule("ENV005")
def accelerator_is_the_devices(view: View) -> Iterator[Problem]:
    """DS_ACCELERATOR names another accelerator than the device's."""
    said = view.environment.get("DS_ACCELERATOR")
    if said is not None and view.device is not None and said != view.device.kind:
        yield Problem(
            path=("environment", "DS_ACCELERATOR"),
            message=f"DS_ACCELERATOR={said} contradicts the device {view.device.id}",
            help="remove it: the launcher sets it",
        )


@rule("ENV006")
def per_node_values_stay_home(view: View) -> Iterator[Problem]:
    """A variable whose right value differs from node to node, in a job of several nodes.

    DeepSpeed's launcher carries every HCCL_* variable of the launching node to the others, HCCL_IF_IP included.
    """
    if (view.nodes or 1) < 2:
        return
    for name in view.environment:
        variable = known_variable(name)
        if variable is not None and variable.per_node:
            yield Problem(
                path=("environment", name),
                message=f"{name} differs from node to node; set here it would be wrong on all nodes but one",
                help="choose the network card by name with HCCL_SOCKET_IFNAME, or set it in each node's own profile"
                if name == "HCCL_IF_IP"
                else "set it in each node's own profile",
                on_key=True,
            )


@rule("ENV007")
def launcher_owns_ranks(view: View) -> Iterator[Problem]:
    """A variable that the launcher sets for each rank."""
    for name in view.environment:
        if name in _RANK_VARIABLES:
            yield Problem(
                path=("environment", name),
                message=f"{name} is set by the launcher for each rank; one value for all ranks breaks the job",
                help="remove it",
                on_key=True,
            )


@rule("ENV008", Severity.WARNING)
def debugging_is_off(view: View) -> Iterator[Problem]:
    """A debugging switch that makes every step slower."""
    slow = {
        "ASCEND_LAUNCH_BLOCKING": "1",
        "CUDA_LAUNCH_BLOCKING": "1",
        "PYTORCH_NO_NPU_MEMORY_CACHING": "1",
        "ASCEND_GLOBAL_LOG_LEVEL": "0",
        "HCCL_ENTRY_LOG_ENABLE": "1",
    }
    for name, value in slow.items():
        if view.environment.get(name) == value:
            yield Problem(
                path=("environment", name),
                message=f"{name}={value} is for debugging: every step gets slower",
                help="remove it from a recipe that is kept; set it in the shell when it is needed",
            )
