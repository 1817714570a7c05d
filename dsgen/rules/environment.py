"""Environment variables that the document sets: right values, no contradictions, and a way to every node."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsgen.catalog.environment import known_variable
from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_EXPORT = re.compile(r"export\s+(\S+)\Z")
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
_ALLOCATOR = ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


@rule("ENV001")
def name_is_a_variable(view: View) -> Iterator[Problem]:
    """A name that no shell takes for a variable.

    DeepSpeed's launcher hands it to the other nodes as `export NAME=VALUE`; a shell says "not a valid identifier"
    there and goes on without it. `export` before a name in `.deepspeed_env` becomes `export export NAME`: a shell
    puts up with that, the launchers that go through MPI or Slurm do not.

    Example (environment):
        HCCL-CONNECT-TIMEOUT=600

    Instead:
        HCCL_CONNECT_TIMEOUT=600

    Since: DeepSpeed 0.14
    """
    for name in view.environment:
        if _NAME.match(name):
            continue
        export = _EXPORT.match(name) if view.kind == "environment" else None
        if export is not None and _NAME.match(export[1]):
            yield Problem(
                path=("environment", name),
                message=f"{name!r} is taken as the whole name: only a shell puts up with `export export {export[1]}`",
                help=f"write {export[1]}=...",
                on_key=True,
                severity=Severity.WARNING,
            )
        else:
            yield Problem(
                path=("environment", name),
                message=f"{name!r} is no name for an environment variable",
                help="write letters, digits and underscores, not starting with a digit",
                on_key=True,
            )


@rule("ENV002")
def value_is_one_line(view: View) -> Iterator[Problem]:
    """A value with a line break, which cannot be told to other nodes.

    DeepSpeed's environment file takes one line for each variable (launcher/runner.py, main), and so does the command
    that exports it on another node.

    Example (recipe):
        environment: {NOTE: "first\\nsecond"}

    Instead:
        environment: {NOTE: "first second"}

    Since: dsgen 0.1
    """
    for name, value in view.environment.items():
        if "\n" in value or "\r" in value:
            yield Problem(
                path=("environment", name),
                message=f"the value of {name} holds a line break: it would be cut where nodes are told about it",
                help="write it on one line",
            )


@rule("ENV003")
def value_is_in_range(view: View) -> Iterator[Problem]:
    """A value that the variable's reader does not take: HCCL answers EI0001, the allocator a ValueError.

    In a file of which nobody says what device it is for, this is a warning: other devices do not read these variables.

    Example (environment):
        HCCL_CONNECT_TIMEOUT=60

    Instead:
        HCCL_CONNECT_TIMEOUT=600

    Since: dsgen 0.1
    """
    unknown = view.device is None and view.kind == "environment"
    if not unknown and (view.device is None or view.device.kind != "npu"):
        return
    for name, value in view.environment.items():
        variable = known_variable(name)
        if variable is not None and not variable.accepts(value):
            yield Problem(
                path=("environment", name),
                message=f"{name}: {value!r} is not {variable.expected}",
                help=variable.use or variable.meaning,
                severity=Severity.WARNING if unknown else None,
            )


@rule("ENV004")
def variables_agree(view: View) -> Iterator[Problem]:
    """Values that exclude each other.

    torch_npu refuses expandable segments together with a limit on splitting blocks or a threshold of garbage
    collection, and its allocator's setting under both of its names; a timeout that has to be longer than another one
    and is not hides the cause of a failure.

    Example (environment):
        PYTORCH_NPU_ALLOC_CONF=expandable_segments:True,max_split_size_mb:64

    Instead:
        PYTORCH_NPU_ALLOC_CONF=expandable_segments:True

    Since: dsgen 0.1
    """
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
    """DS_ACCELERATOR names another accelerator than the device's.

    DeepSpeed takes the one that is named there and looks no further (accelerator/real_accelerator.py): it trains on
    that one, or does not start.

    Example (recipe):
        environment: {DS_ACCELERATOR: cuda}

    Instead:
        environment: {DS_ACCELERATOR: npu}

    Since: dsgen 0.1
    """
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

    DeepSpeed's launcher carries every HCCL_* variable of the launching node to the others, HCCL_IF_IP included, and
    everything in `.deepspeed_env`, which it reads only for several nodes.

    Example (environment):
        HCCL_IF_IP=10.0.0.1

    Instead:
        HCCL_SOCKET_IFNAME=eth0

    Since: DeepSpeed 0.14
    """
    if (view.nodes or 1) < 2 and view.kind != "environment":
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
    """A variable that the launcher sets for each rank.

    In `.deepspeed_env` this is a warning: the node's launcher overrides it for its ranks (launcher/launch.py),
    launchers that go through MPI do not.

    Example (environment):
        RANK=0

    Instead:
        OMP_NUM_THREADS=8

    Since: DeepSpeed 0.14
    """
    for name in view.environment:
        if name in _RANK_VARIABLES:
            yield Problem(
                path=("environment", name),
                message=f"{name} is set by the launcher for each rank; one value for all ranks breaks the job",
                help="remove it",
                on_key=True,
                severity=Severity.WARNING if view.kind == "environment" else None,
            )


@rule("ENV008", Severity.WARNING)
def debugging_is_off(view: View) -> Iterator[Problem]:
    """A debugging switch that makes every step slower.

    The host waits for every operation, the allocator keeps nothing, or everything is logged: right for finding a fault,
    and easily forgotten in a file that is kept.

    Example (environment):
        ASCEND_LAUNCH_BLOCKING=1

    Instead:
        ASCEND_LAUNCH_BLOCKING=0

    Since: dsgen 0.1
    """
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
                help="remove it from a file that is kept; set it in the shell when it is needed",
            )


@rule("ENV009")
def line_is_an_assignment(view: View) -> Iterator[Problem]:
    """A line of `.deepspeed_env` without `=`, empty ones and comments included: the launcher stops.

    ValueError "not enough values to unpack", which names neither the file nor the line (launcher/runner.py, main). The
    file is read for jobs on several nodes only, so that a job that runs on one node fails on two.

    Example (environment):
        # timeouts
        HCCL_CONNECT_TIMEOUT=600

    Instead:
        HCCL_CONNECT_TIMEOUT=600

    Since: DeepSpeed 0.14
    """
    if view.kind != "environment":
        return
    for index, line in enumerate(view.lines):
        if "=" not in line:
            text = line.strip()
            what = "an empty line" if not text else "a comment" if text.startswith("#") else "a line without `=`"
            yield Problem(
                path=(index,),
                message=f"{what}: for a job on several nodes DeepSpeed's launcher stops with a ValueError",
                help="write NAME=VALUE on every line, and nothing else",
            )


@rule("ENV010")
def comment_holds_no_equals(view: View) -> Iterator[Problem]:
    """A comment with an `=` in `.deepspeed_env`: the other nodes do nothing.

    The launcher takes it for a variable and sends `export # NAME=VALUE; cd ...; python ...` to every node, whose shell
    ignores all that follows the `#`: the node starts no rank, without a word (launcher/runner.py, main;
    launcher/multinode_runner.py, PDSHRunner.get_cmd).

    Example (environment):
        # HCCL_BUFFSIZE=100
        HCCL_CONNECT_TIMEOUT=600

    Instead:
        HCCL_CONNECT_TIMEOUT=600

    Since: DeepSpeed 0.14
    """
    if view.kind != "environment":
        return
    for index, line in enumerate(view.lines):
        if line.lstrip().startswith("#") and "=" in line:
            yield Problem(
                path=(index,),
                message="a comment with `=` is exported as a variable: its `#` makes a comment of the rest of each "
                "node's command, and no rank starts there",
                help="remove the line: this file takes no comments",
            )


@rule("ENV011", Severity.WARNING)
def value_has_no_quotes(view: View) -> Iterator[Problem]:
    """A value in quotes in `.deepspeed_env`: they do not do there what they do in a shell.

    The launcher puts double quotes around a value that holds anything but letters, digits and `@%+=:,./-`, and escapes
    nothing (launcher/multinode_runner.py, add_export). Single quotes become part of the value; double quotes end the
    ones around them, so that the value is cut at its first space.

    Example (environment):
        PYTORCH_NPU_ALLOC_CONF="expandable_segments:True"

    Instead:
        PYTORCH_NPU_ALLOC_CONF=expandable_segments:True

    Since: DeepSpeed 0.14
    """
    if view.kind != "environment":
        return
    for name, value in view.environment.items():
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            cut = value[0] == '"' and any(character.isspace() for character in value)
            yield Problem(
                path=("environment", name),
                message=f"the quotes around the value of {name} "
                + (
                    "end those that the launcher adds: it is cut at its first space" if cut else "may become part of it"
                ),
                help="write the value without quotes: the launcher adds those that are needed",
            )


@rule("ENV012", Severity.WARNING)
def value_is_not_followed_by_a_comment(view: View) -> Iterator[Problem]:
    """A comment behind a value in `.deepspeed_env`: it becomes part of the value.

    Everything behind the first `=` is the value (launcher/runner.py, main).

    Example (environment):
        HCCL_CONNECT_TIMEOUT=600 # seconds

    Instead:
        HCCL_CONNECT_TIMEOUT=600

    Since: DeepSpeed 0.14
    """
    if view.kind != "environment":
        return
    for name, value in view.environment.items():
        match = re.search(r"\s#\s.*", value)
        if match is not None:
            yield Problem(
                path=("environment", name),
                message=f"{match[0].strip()[:60]!r} becomes part of the value of {name}",
                help="remove it: this file takes no comments",
            )


@rule("ENV013", Severity.WARNING)
def variable_is_set_once(view: View) -> Iterator[Problem]:
    """A variable that `.deepspeed_env` sets twice.

    The last line counts, also that of the file in the current folder over that in the home folder, both of which the
    launcher reads (launcher/runner.py, main).

    Example (environment):
        HCCL_CONNECT_TIMEOUT=600
        HCCL_CONNECT_TIMEOUT=1200

    Instead:
        HCCL_CONNECT_TIMEOUT=1200

    Since: DeepSpeed 0.14
    """
    if view.kind != "environment":
        return
    seen: dict[str, int] = {}
    for index, line in enumerate(view.lines):
        name, equals, _ = line.partition("=")
        name = name.strip()
        if not equals or name.startswith("#"):
            continue
        if name in seen:
            yield Problem(
                path=(seen[name],),
                message=f"{name} is set again in line {index + 1}: this line does nothing",
                help="remove one of the two",
            )
        seen[name] = index
