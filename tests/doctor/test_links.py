from __future__ import annotations

from collections.abc import Callable

import pytest

from dsgen.doctor.check import Check, State, Subject
from dsgen.doctor.links import check_links, parse_conf, parse_paths
from dsgen.doctor.probe import Captured, Machine

from .conftest import SAMPLES, by_name

TOOL = (SAMPLES / "hccn_tool.txt").read_text()
TWO_NODES = {"device": "910b3", "per_node": 8, "nodes": 2, "hosts": ["a", "b"]}


@pytest.fixture
def judge(capture: Callable[..., Captured], subject: Callable[..., Subject]) -> Callable[..., dict[str, Check]]:
    def run(files: dict[str, str], **changes: object) -> dict[str, Check]:
        return by_name(check_links(subject(capture(files), **changes)))

    return run


def test_healthy(judge: Callable[..., dict[str, Check]]) -> None:
    files = {
        "hccn_tool.txt": TOOL,
        "hccn.conf": "hccn.conf",
        "npu-smi-info-t-topo.txt": "npu-smi-info-t-topo-a2.txt",
        "npu-smi-info.txt": "npu-smi-info-a2-910b3-idle.txt",
    }
    checks = judge(files, hardware=TWO_NODES)
    assert {name: (check.state.value, check.found) for name, check in checks.items()} == {
        "links.addresses": ("ok", "/etc/hccn.conf gives 8 devices an address of their own"),
        "links.ports": ("ok", "up, NPU 0, 1"),
        "links.tls": ("ok", "off for NPU 0, 1; it must be the same on every server"),
        "links.paths": ("ok", "pairs of NPUs by path: HCCS 28"),
    }


def test_hccn_tool_alone_is_enough(judge: Callable[..., dict[str, Check]]) -> None:
    assert judge({"hccn_tool.txt": TOOL})["links.ports"].found == "up, NPU 0, 1"


@pytest.mark.parametrize(
    ("old", "new", "name", "words"),
    [
        ("link status: UP", "link status: DOWN", "links.ports", "the port of NPU 0, 1 is DOWN"),
        ("Success", "Receive timeout", "links.ports", "network health of NPU 0, 1: Receive timeout"),
        ("dev_id:0, tls switch[0]", "dev_id:0, tls switch[1]", "links.tls", "on for NPU 0 and off for NPU 1"),
    ],
)
def test_faults_stop_jobs_of_several_nodes(
    judge: Callable[..., dict[str, Check]], old: str, new: str, name: str, words: str
) -> None:
    files = {"hccn_tool.txt": TOOL.replace(old, new)}
    several = judge(files, hardware=TWO_NODES)[name]
    assert (several.state, words in several.found) == (State.ERROR, True)
    assert judge(files)[name].state is State.WARNING


def test_an_answer_in_an_unknown_form(judge: Callable[..., dict[str, Check]]) -> None:
    checks = judge({"hccn_tool.txt": TOOL.replace("link status", "state of the link")})
    assert checks["links.ports"].state is State.NOT_UNDERSTOOD
    topology = judge({"npu-smi-info-t-topo.txt": "a b c\nd e f\n"})["links.paths"]
    assert topology.state is State.NOT_UNDERSTOOD
    conf = judge({"hccn.conf": "nothing\nknown\n"})["links.addresses"]
    assert conf.state is State.NOT_UNDERSTOOD


def test_addresses(judge: Callable[..., dict[str, Check]]) -> None:
    text = (SAMPLES / "hccn.conf").read_text()
    assert parse_conf(text)["gateway"][7] == "29.81.0.1"
    twice = judge({"hccn.conf": text.replace("29.81.3.11", "29.81.3.10")}, hardware=TWO_NODES)["links.addresses"]
    assert (twice.state, "29.81.3.10 to several" in twice.found) == (State.ERROR, True)
    short = {"hccn.conf": text.partition("address_6")[0], "npu-smi-info.txt": "npu-smi-info-a2-910b3-idle.txt"}
    assert judge(short, hardware=TWO_NODES)["links.addresses"].found.endswith("no address for NPU 6, 7")
    assert judge({"hccn.conf": "\n\n"})["links.addresses"].state is State.WARNING
    assert judge({})["links.addresses"].state is State.SKIPPED


def test_paths() -> None:
    matrix = parse_paths((SAMPLES / "npu-smi-info-t-topo-a2.txt").read_text())
    assert matrix is not None
    assert (matrix["NPU0"]["NPU0"], matrix["NPU0"]["NPU7"], matrix["NPU7"]["NPU0"]) == ("X", "HCCS", "HCCS")
    assert parse_paths("") is None
    assert parse_paths("NPU0 NPU1\nNPU0 X HCCS\n") is None


def test_a_pair_without_a_path(judge: Callable[..., dict[str, Check]]) -> None:
    text = "NPU0 NPU1 CPU Affinity\nNPU0 X NA 0-23\nNPU1 NA X 0-23\n"
    check = judge({"npu-smi-info-t-topo.txt": text})["links.paths"]
    assert (check.state, check.found) == (State.WARNING, "1 pairs of NPUs have no known path")


def test_live_and_quick(machine: Callable[..., Machine], subject: Callable[..., Subject]) -> None:
    table = (SAMPLES / "npu-smi-info-910prob-23.0.txt").read_text()
    programs = {
        "npu-smi": f'[ "$*" = info ] || exit 1\ncat <<"END"\n{table}\nEND',
        "hccn_tool": '[ "$3" = -link ] || exit 1\n[ $2 = 3 ] && echo "link status: DOWN" || echo "link status: UP"',
    }
    probe = machine({"/etc/hccn.conf": (SAMPLES / "hccn.conf").read_text()}, programs=programs)
    checks = by_name(check_links(subject(probe, hardware=TWO_NODES)))
    assert checks["links.ports"].found == "the port of NPU 3 is DOWN: no traffic to other servers"
    assert checks["links.tls"].state is State.SKIPPED
    quick = by_name(check_links(subject(probe, quick=True)))
    assert quick["links.ports"].state is State.SKIPPED
    assert quick["links.addresses"].state is State.OK
