"""Links between NPUs: the RoCE port of each (hccn_tool, /etc/hccn.conf), and the paths inside the server."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from dsgen.doctor.check import Check, Subject, not_understood, ok, skipped, warning
from dsgen.doctor.probe import Output, Probe
from dsgen.doctor.seen import see
from dsgen.doctor.words import listed

_CONF = "/etc/hccn.conf"
_TOOLS = ("hccn_tool", "/usr/local/Ascend/driver/tools/hccn_tool")
_AT_ONCE = 8


def check_links(subject: Subject) -> Iterator[Check]:
    """Ports, addresses and TLS switches of the devices, and the paths between them in the server."""
    yield _addresses(subject)
    if subject.quick:
        yield skipped("links.ports", "left out by --quick (hccn_tool)")
        return
    indices = [device.index for device in see(subject.probe, "npu").devices] or _captured_indices(subject.probe)
    tool = next((name for name in _TOOLS if subject.probe.has_program(name)), None)
    if tool is None or not indices:
        yield _no_port(subject, "hccn_tool is not here" if tool is None else "no device to ask about")
    else:
        yield _ports(subject, tool, indices)
        yield _tls(subject, tool, indices)
    yield _paths(subject)


def _captured_indices(probe: Probe) -> list[int]:
    """Devices whose links were captured without npu-smi's output beside them."""
    return [] if probe.live else [index for index in range(64) if not _ask(probe, "hccn_tool", index, "link").missing]


def _matters(subject: Subject, name: str, found: str, remedy: str) -> Check:
    """Ports carry traffic between servers only: without several nodes a bad one is no more than a warning."""
    if subject.plan is not None and subject.plan.nodes > 1:
        return subject.wrong(name, found, remedy)
    return warning(name, found, remedy)


def _ask(probe: Probe, tool: str, index: int, what: str) -> Output:
    return probe.run(tool, "-i", str(index), f"-{what}", "-g")


def _each(probe: Probe, tool: str, indices: Sequence[int], what: str) -> dict[int, Output]:
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(indices, pool.map(lambda index: _ask(probe, tool, index, what), indices), strict=True))


def _ports(subject: Subject, tool: str, indices: Sequence[int]) -> Check:
    name = "links.ports"
    links = _each(subject.probe, tool, indices, "link")
    health = _each(subject.probe, tool, indices, "net_health")
    up = {i: _word(r"link status *: *(\S+)", output) for i, output in links.items()}
    net = {i: _word(r"net health status *: *(.*\S)", output) for i, output in health.items()}
    down = [i for i, word in up.items() if word and word.upper() != "UP"]
    sick = [i for i, word in net.items() if word and word.lower() != "success"]
    if down:
        remedy = "check cable, optical module and switch port (hccn_tool -i N -optical -g), or leave the server out"
        return _matters(
            subject, name, f"the port of NPU {listed(down)} is {up[down[0]]}: no traffic to other servers", remedy
        )
    if sick:
        remedy = "check gateway and netdetect address (hccn_tool -i N -netdetect -g), then the switch"
        return _matters(subject, name, f"network health of NPU {listed(sick)}: {net[sick[0]]}", remedy)
    silent = [i for i, word in up.items() if not word and not links[i].missing]
    if silent:
        text = (links[silent[0]].text.strip() or links[silent[0]].problem).splitlines()
        said = f"hccn_tool -i {silent[0]} -link -g said {text[0][:120]!r}" if text else "hccn_tool said nothing"
        return not_understood(name, said, "run it by hand: it should say `link status: UP`")
    said_up = [i for i, word in up.items() if word]
    return ok(name, f"up, NPU {listed(said_up)}") if said_up else _no_port(subject, "hccn_tool is not here")


def _no_port(subject: Subject, why: str) -> Check:
    """Why no port is judged; `why` is the reason on the machine itself."""
    name, probe = "links.ports", subject.probe
    if probe.live:
        return skipped(name, why)
    questions = ((index, what) for index in range(64) for what in ("link", "net_health", "tls"))
    if probe.read("hccn_tool.txt") is None or any(not _ask(probe, "hccn_tool", *each).missing for each in questions):
        return skipped(name, "no output of hccn_tool was captured")
    found = "hccn_tool.txt is there and has no heading such as `# hccn_tool -i 0 -link -g`"
    return not_understood(name, found, "write the command above each output, as docs/doctor.md shows it")


def _tls(subject: Subject, tool: str, indices: Sequence[int]) -> Check:
    name = "links.tls"
    switches = {}
    for index, output in _each(subject.probe, tool, indices, "tls").items():
        switch = _word(r"tls switch *\[(\d)\]", output)
        if switch:
            switches[index] = switch
    if not switches:
        return skipped(name, "the TLS switch is not said")
    if len(set(switches.values())) == 1:
        state = "on" if "1" in switches.values() else "off"
        return ok(name, f"{state} for NPU {listed(list(switches))}; it must be the same on every server")
    on = [index for index, switch in switches.items() if switch == "1"]
    off = [index for index, switch in switches.items() if switch != "1"]
    return _matters(
        subject,
        name,
        f"TLS is on for NPU {listed(on)} and off for NPU {listed(off)}: connections end with EI0016",
        "set all alike: for each device hccn_tool -i N -tls -s enable 0",
    )


def parse_conf(text: str) -> Mapping[str, Mapping[int, str]]:
    """hccn.conf: key (`address`, `netmask`, `gateway`, ...) -> device -> value."""
    found: dict[str, dict[int, str]] = {}
    for key, index, value in re.findall(r"^\s*([A-Za-z]\w*?)_(\d{1,3})\s*=\s*(\S+)\s*$", text, re.MULTILINE):
        found.setdefault(key.lower(), {})[int(index)] = value
    return found


def _addresses(subject: Subject) -> Check:
    name = "links.addresses"
    text = subject.probe.read(_CONF)
    if text is None:
        why = f"{_CONF} cannot be read" if subject.probe.live else "no hccn.conf was captured"
        if subject.probe.live and subject.plan is not None and subject.plan.nodes > 1:
            return warning(
                name, f"{why}: HCCL reads the devices' addresses there", f"in a container mount it: -v {_CONF}"
            )
        return skipped(name, why)
    addresses = parse_conf(text).get("address", {})
    if not addresses:
        if not text.strip():
            return _matters(subject, name, f"{_CONF} is empty: no device has an address", "hccn_tool -i N -ip -s ...")
        return not_understood(name, f"{_CONF} has no line address_N=", "look at it yourself")
    twice = [address for address, count in Counter(addresses.values()).items() if count > 1]
    if twice:
        return _matters(
            subject, name, f"{_CONF} gives {listed(twice)} to several devices", "give each an address of its own"
        )
    present = [device.index for device in see(subject.probe, "npu").devices]
    without = [index for index in present if index not in addresses]
    if without:
        return _matters(
            subject,
            name,
            f"{_CONF} has no address for NPU {listed(without)}",
            "hccn_tool -i N -ip -s address A netmask M",
        )
    return ok(name, f"{_CONF} gives {len(addresses)} devices an address of their own")


def parse_paths(text: str) -> Mapping[str, Mapping[str, str]] | None:
    """The matrix of `npu-smi info -t topo`: device -> device -> `X`, `HCCS`, `PIX`, ...; None in an unknown form."""
    heads: list[str] = []
    matrix: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        words = line.split()
        if not heads and words[:1] and re.fullmatch(r"NPU\d{1,3}", words[0]):
            heads = [word for word in words if re.fullmatch(r"NPU\d{1,3}", word)]
        elif heads and words and words[0] in heads and len(words) > len(heads):
            matrix[words[0]] = dict(zip(heads, words[1:], strict=False))
    return matrix if heads and set(matrix) == set(heads) else None


def _paths(subject: Subject) -> Check:
    name = "links.paths"
    output = subject.probe.run("npu-smi", "info", "-t", "topo")
    matrix = parse_paths(output.text)
    if matrix is None:
        if output.missing or output.problem or not output.text.strip():
            return skipped(name, "npu-smi does not say (npu-smi info -t topo)")
        return not_understood(name, "npu-smi info -t topo prints an unknown form", "look at it yourself")
    kinds = Counter(path for one, row in matrix.items() for other, path in row.items() if one != other)
    if kinds.get("NA"):
        return warning(
            name, f"{kinds['NA'] // 2} pairs of NPUs have no known path", "npu-smi info -t topo; a link may be down"
        )
    words = ", ".join(f"{path} {count // 2}" for path, count in kinds.most_common())
    return ok(name, f"pairs of NPUs by path: {words}" if words else "one NPU")


def _word(pattern: str, output: Output) -> str:
    match = re.search(pattern, output.text, re.IGNORECASE)
    return match[1] if match else ""
