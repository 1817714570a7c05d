"""Lines of a hostfile, as DeepSpeed's launcher reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View

_ENTRY = re.compile(r"^(\S+)\s+slots=(\d+)")
"""The launcher's own pattern (launcher/runner.py, _parse_hostfile); what stands behind a match is not looked at."""
_ALMOST = re.compile(
    r"([^\s:=]+)[\s:]*(?:(?:max[-_])?(?:slots?|gpus?|np|devices)\s*[:=]?)?\s*(\d{1,4})?", re.IGNORECASE
)
_HERE = ("localhost", "127.0.0.1", "::1")
_MOST_SLOTS = 10**9


@dataclass(frozen=True, kw_only=True)
class _Entry:
    """A line that names a host."""

    index: int
    host: str
    slots: int
    rest: str
    """What follows the number."""


@rule("HST001")
def line_is_an_entry(view: View) -> Iterator[Problem]:
    """A line that is neither `NAME slots=NUMBER` nor a comment: the launcher stops.

    The launcher knows one form of a line: a name, white space, and `slots=` with a number directly behind it. Anything
    else, `slots = 8` or `worker-0:8` included, is a ValueError "Hostfile contains a bad entry" (launcher/runner.py,
    _parse_hostfile). Lines that start with `#` and empty ones are passed over.

    Example (hostfile):
        worker-0 slots = 8
        worker-1 slots = 8

    Instead:
        worker-0 slots=8
        worker-1 slots=8

    Since: DeepSpeed 0.14
    """
    for index, line in enumerate(view.lines if view.kind == "hostfile" else ()):
        text = line.strip()
        if text and not text.startswith("#") and not _ENTRY.match(text):
            yield Problem(
                path=(index,),
                message=f"{_short(text)!r} is no entry of a hostfile: DeepSpeed's launcher stops with a ValueError",
                help=_entry_meant(text),
            )


def _entry_meant(text: str) -> str:
    match = _ALMOST.match(text)
    if match is None or not match[2]:
        return "write NAME slots=NUMBER, with the number of devices of that host"
    return f"write {match[1]} slots={match[2]}"


@rule("HST002")
def host_stands_once(view: View) -> Iterator[Problem]:
    """A host that stands twice: the launcher stops.

    ValueError "Hostfile contains multiple entries" (launcher/runner.py, _parse_hostfile): slots of one host cannot be
    said in two lines.

    Example (hostfile):
        worker-0 slots=4
        worker-0 slots=4

    Instead:
        worker-0 slots=8

    Since: DeepSpeed 0.14
    """
    first: dict[str, int] = {}
    for entry in _entries(view):
        if first.setdefault(entry.host, entry.index) != entry.index:
            yield Problem(
                path=(entry.index,),
                message=f"{_short(entry.host)} stands in line {first[entry.host] + 1} already: DeepSpeed's launcher "
                "stops with a ValueError",
                help="write one line per host, with all its slots",
            )


@rule("HST003")
def hosts_are_there(view: View) -> Iterator[Problem]:
    """A hostfile without any host: the launcher stops.

    ValueError "Hostfile is empty or not formatted correctly" (launcher/runner.py, _parse_hostfile). For one machine no
    hostfile is needed: without the file the launcher takes the devices of this machine.

    Example (hostfile):
        # worker-0 slots=8

    Instead:
        worker-0 slots=8

    Since: DeepSpeed 0.14
    """
    if view.kind == "hostfile" and not any(line.strip() and not line.strip().startswith("#") for line in view.lines):
        yield Problem(
            path=(),
            message="the hostfile names no host: DeepSpeed's launcher stops with a ValueError",
            help="write a line NAME slots=NUMBER for every host, or remove the file to run on this machine",
        )


@rule("HST004", Severity.WARNING)
def line_ends_after_the_slots(view: View) -> Iterator[Problem]:
    """Text behind the number of slots: the launcher ignores it.

    Only the beginning of a line is matched: `slots=8.5` and `slots=8garbage` are 8 slots, and `max_slots=16`, which
    Open MPI's hostfiles have, says nothing here. A comment behind the number does no harm.

    Example (hostfile):
        worker-0 slots=8 max_slots=16
        worker-1 slots=8

    Instead:
        worker-0 slots=8  # of 16
        worker-1 slots=8

    Since: DeepSpeed 0.14
    """
    for entry in _entries(view):
        rest = entry.rest.strip()
        if rest and not (rest.startswith("#") and entry.rest[:1].isspace()):
            yield Problem(
                path=(entry.index,),
                message=f"{_short(rest)!r} behind the slots is ignored: {_short(entry.host)} has {entry.slots} slots",
                help="remove it, or make it a comment: ` # ...`",
            )


@rule("HST005", Severity.WARNING)
def host_has_slots(view: View) -> Iterator[Problem]:
    """A host with 0 slots: the launcher takes it and starts no rank there.

    As the first host it also lends its address to the others as the place where all ranks meet, and no rank listens
    there.

    Example (hostfile):
        worker-0 slots=8
        worker-1 slots=0

    Instead:
        worker-0 slots=8
        # worker-1 slots=0

    Since: DeepSpeed 0.14
    """
    for entry in _entries(view):
        if entry.slots == 0:
            yield Problem(
                path=(entry.index,),
                message=f"{_short(entry.host)} has 0 slots: it is connected to, and no rank is started there",
                help="give its number of devices, or put # before the line",
            )


@rule("HST006", Severity.WARNING)
def name_can_be_filtered(view: View) -> Iterator[Problem]:
    """A host name with an `@`, a colon, a comma or a bracket: filters and pdsh read it as something else.

    `--include` and `--exclude` split at `@` and `:` (launcher/runner.py, parse_node_config_list), so that neither
    `user@worker-0` nor an IPv6 address can be named there. pdsh gets the names as one list: it splits it at commas and
    expands brackets, so that `worker-[0-3]` is four hosts to pdsh and one to DeepSpeed, which then counts the ranks of
    one.

    Example (hostfile):
        alice@worker-0 slots=8
        alice@worker-1 slots=8

    Instead:
        worker-0 slots=8
        worker-1 slots=8

    Since: DeepSpeed 0.14
    """
    for entry in _entries(view):
        name = _short(entry.host)
        if re.search(r"[\[\],]", entry.host):
            yield Problem(
                path=(entry.index,),
                message=f"DeepSpeed takes {name} for the name of one host; pdsh makes several of it",
                help="write one line per host",
            )
        elif re.search(r"[@:]", entry.host):
            yield Problem(
                path=(entry.index,),
                message=f"{name} cannot be named in --include and --exclude, which split at @ and at the colon",
                help="write a plain name or an IPv4 address; put users, ports and addresses into ~/.ssh/config",
            )


@rule("HST007", Severity.INFO)
def several_hosts_are_named(view: View) -> Iterator[Problem]:
    """A hostfile with one host: the job runs on the machine where it is started.

    The launcher asks whether that host answers by ssh, and then starts the ranks locally (launcher/runner.py, main:
    several nodes only when more than one host is left), with the host's number of slots and without reading
    `.deepspeed_env`. Started on another machine, the job trains there.

    Example (hostfile):
        worker-0 slots=8

    Instead:
        worker-0 slots=8
        worker-1 slots=8

    Since: DeepSpeed 0.14
    """
    entries = list(_entries(view))
    if len(entries) == 1 and entries[0].host not in _HERE:
        yield Problem(
            path=(entries[0].index,),
            message=f"with one host the job runs on the machine where it is started, not on {_short(entries[0].host)}",
            help="start it on that host, or say --force_multi",
        )


@rule("HST008", Severity.INFO)
def hosts_have_equal_slots(view: View) -> Iterator[Problem]:
    """Hosts with different numbers of slots.

    The launcher starts as many ranks on each host as it has slots there; `--num_gpus` then sets one number for all of
    them. Most clusters are alike, so that another number is often a slip.

    Example (hostfile):
        worker-0 slots=8
        worker-1 slots=8
        worker-2 slots=6

    Instead:
        worker-0 slots=8
        worker-1 slots=8
        worker-2 slots=8

    Since: DeepSpeed 0.14
    """
    entries = [entry for entry in _entries(view) if entry.slots]
    counts = [entry.slots for entry in entries]
    usual = max(counts, key=counts.count, default=0)
    for entry in entries:
        if entry.slots != usual:
            yield Problem(
                path=(entry.index,),
                message=f"{_short(entry.host)} has {entry.slots} slots, {counts.count(usual)} of {len(counts)} hosts "
                f"have {usual}",
                help="correct it if it is a slip: every slot becomes a rank",
            )


@rule("HST009")
def text_starts_with_a_name(view: View) -> Iterator[Problem]:
    """A byte order mark before the first line: it becomes part of the first host's name, which then is not found.

    The launcher reads the file as plain UTF-8 (launcher/runner.py, fetch_hostfile); some editors on Windows write the
    mark, which cannot be seen in the example.

    Example (hostfile):
        \ufeffworker-0 slots=8
        worker-1 slots=8

    Instead:
        worker-0 slots=8
        worker-1 slots=8

    Since: DeepSpeed 0.14
    """
    if view.kind == "hostfile" and view.lines and view.lines[0].startswith("\ufeff"):
        yield Problem(
            path=(0,),
            message="the file starts with a byte order mark, which becomes part of the first host's name",
            help="save it as UTF-8 without a mark",
        )


def _entries(view: View) -> Iterator[_Entry]:
    """Every line that names a host."""
    if view.kind != "hostfile":
        return
    for index, line in enumerate(view.lines):
        text = line.strip()
        match = None if text.startswith("#") else _ENTRY.match(text)
        if match is not None:
            slots = min(int(match[2][:12]), _MOST_SLOTS)
            yield _Entry(index=index, host=match[1], slots=slots, rest=text[match.end() :])


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
