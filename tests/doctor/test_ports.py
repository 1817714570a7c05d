from __future__ import annotations

import socket
from collections.abc import Callable, Iterator

import pytest

from dsgen.doctor.check import State, Subject
from dsgen.doctor.ports import HCCL_PORTS, check_ports, is_free
from dsgen.doctor.probe import Machine

from .conftest import by_name

SEVERAL = {"device": "910b3", "per_node": 8, "nodes": 2, "hosts": ["a", "b"]}


@pytest.fixture
def taken() -> Iterator[int]:
    """A port that somebody listens on."""
    with socket.socket() as server:
        server.bind(("", 0))
        server.listen(1)
        yield server.getsockname()[1]


def test_a_port_is_free_when_nobody_listens(taken: int) -> None:
    assert not is_free(taken)
    with socket.socket() as other:
        other.bind(("", 0))
        port = other.getsockname()[1]
    assert is_free(port)


def test_the_hccl_of_the_simulated_npu_opens_none(
    machine: Callable[..., Machine], subject: Callable[..., Subject], taken: int
) -> None:
    environ = {"HCCL_IF_BASE_PORT": str(min(taken, 65520))}
    assert by_name(check_ports(subject(machine(environ=environ))))["ports.hccl"].state is State.ERROR
    simulated = by_name(check_ports(subject(machine(environ={**environ, "DSGEN_SIMULATED_NPU": "1"}))))["ports.hccl"]
    assert simulated.state is State.SKIPPED


def test_the_port_of_rank_0(machine: Callable[..., Machine], subject: Callable[..., Subject], taken: int) -> None:
    def judged(port: str | None, **changes: object) -> tuple[State, str, str]:
        environ = {} if port is None else {"MASTER_PORT": port}
        check = by_name(check_ports(subject(machine(environ=environ), **changes)))["ports.master"]
        return check.state, check.found, check.remedy

    assert judged(None)[:2] == (State.OK, "launch.sh takes a free one")
    state, found, remedy = judged(str(taken), hardware=SEVERAL)
    assert (state, f"MASTER_PORT={taken} is taken on this host; rank 0 runs on a" in found) == (State.ERROR, True)
    assert f"export MASTER_PORT={taken}," not in remedy
    assert judged("port")[0] is State.ERROR
    assert judged("70000")[0] is State.ERROR


def test_the_ports_of_hccl(machine: Callable[..., Machine], subject: Callable[..., Subject], taken: int) -> None:
    def judged(base: str, files: dict[str, str] | None = None, **changes: object) -> tuple[State, str]:
        probe = machine(files or {}, environ={"HCCL_IF_BASE_PORT": base})
        check = by_name(check_ports(subject(probe, **changes)))["ports.hccl"]
        return check.state, check.found

    state, found = judged(str(taken - HCCL_PORTS + 1))
    assert (state, f"{taken} taken on this host (EI0019)" in found) == (State.ERROR, True)
    assert judged("80")[0] is State.ERROR
    assert judged("65521")[0] is State.ERROR
    free = next(base for base in range(20000, 21000, 40) if all(is_free(base + i) for i in range(HCCL_PORTS)))
    assert judged(str(free)) == (State.OK, f"{free} to {free + 31} are free on this host")
    outgoing = {"/proc/sys/net/ipv4/ip_local_port_range": f"{free + 5}\t60999\n"}
    assert judged(str(free), outgoing)[0] is State.OK
    assert judged(str(free), outgoing, hardware=SEVERAL)[0] is State.WARNING
    reserved = outgoing | {"/proc/sys/net/ipv4/ip_local_reserved_ports": f"{free}-{free + 31}\n"}
    assert judged(str(free), reserved, hardware=SEVERAL)[0] is State.OK


def test_the_recipes_own_range_is_looked_at(machine: Callable[..., Machine], subject: Callable[..., Subject]) -> None:
    judged = subject(machine(), environment={"HCCL_IF_BASE_PORT": 23456})
    assert "23456 to 23487" in by_name(check_ports(judged))["ports.hccl"].found
    shell = subject(machine(environ={"HCCL_IF_BASE_PORT": "23556"}), environment={"HCCL_IF_BASE_PORT": 23456})
    assert "23556 to 23587" in by_name(check_ports(shell))["ports.hccl"].found
