"""Hosts of a job, over an ssh that runs the script here, as this or that host would."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from dsgen.doctor.check import Check, State, Subject
from dsgen.doctor.hosts import check_hosts, read_answer
from dsgen.doctor.probe import Machine, Output

from .conftest import by_name

SEVERAL = {"device": "910b3", "per_node": 8, "nodes": 3, "hosts": ["a", "b", "c"]}
BATCH = {"sequence_length": 2048, "micro": 1, "global": 48}
# The words before the command are options; the host follows `--`.
SSH = """
while [ "$1" != -- ]; do shift; done
shift; host=$1; shift
case $host in
%s
esac
exec "$@"
"""


@pytest.fixture
def judge(machine: Callable[..., Machine], subject: Callable[..., Subject]) -> Callable[..., dict[str, Check]]:
    """The checks of the hosts a, b and c; `cases` says what is special on which, as cases of the shell."""

    def run(cases: str = "", environ: Mapping[str, str] | None = None) -> dict[str, Check]:
        probe = machine(programs={"ssh": SSH % cases}, environ=environ)
        return by_name(check_hosts(subject(probe, hardware=SEVERAL, batch=BATCH)))

    return run


def test_hosts_that_are_alike(judge: Callable[..., dict[str, Check]]) -> None:
    checks = judge()
    assert {check.state for check in checks.values()} == {State.OK}
    assert set(checks) == {"hosts.ssh", "hosts.paths", "hosts.versions", "hosts.clock"}
    assert f"python {sys.version.split()[0]}" in checks["hosts.versions"].found


def test_a_host_that_does_not_answer(judge: Callable[..., dict[str, Check]]) -> None:
    checks = judge('b) echo "b: Permission denied (publickey)." >&2; exit 255 ;;')
    ssh = checks["hosts.ssh"]
    assert (ssh.state, ssh.found) == (State.ERROR, "b: b: Permission denied (publickey).")
    assert "ssh -o BatchMode=yes b true" in ssh.remedy
    assert checks["hosts.versions"].state is State.OK
    assert set(judge("*) exit 255 ;;")) == {"hosts.ssh"}


def test_all_hosts_are_asked_at_once(judge: Callable[..., dict[str, Check]]) -> None:
    begun = time.monotonic()
    judge("*) sleep 2 ;;")
    assert time.monotonic() - begun < 5.5


def test_other_versions_paths_and_clocks(judge: Callable[..., dict[str, Check]], tmp_path: Path) -> None:
    script = tmp_path / "other.sh"
    # Another host in one file: what it would say differently.
    script.write_text(
        "sed -e \"s|^echo .clock.*|echo clock $(($(date +%s) - 100))|\" -e 's|^  . version|  |' "
        '-e \'s|print("version python", .*|print("version python 3.9.1")|\' '
        f"-e 's|^for path in .*|echo path no {sys.executable}|' | sh -s\n"
    )
    checks = judge(f"c) exec sh {script} ;;")
    assert checks["hosts.ssh"].state is State.OK
    versions = checks["hosts.versions"]
    assert versions.state is State.ERROR
    assert versions.found == f"c: python 3.9.1, here {sys.version.split()[0]}"
    paths = checks["hosts.paths"]
    assert (paths.state, paths.found) == (State.ERROR, f"not there under the same name: c: {sys.executable}")
    clock = checks["hosts.clock"]
    assert (clock.state, clock.found.split(";")[0]) in [
        (State.WARNING, f"clocks differ: c by {seconds} s") for seconds in (97, 98, 99, 100)
    ]


def test_the_release_of_cann_is_compared(judge: Callable[..., dict[str, Check]], tmp_path: Path) -> None:
    for name, version in (("here", "8.5.0"), ("there", "8.3.RC1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ascend_toolkit_install.info").write_text(f"version={version}\n")
    other = f"b) sed 's|{tmp_path}/here|{tmp_path}/there|g' | sh -s; exit ;;"
    found = judge(other, environ={"ASCEND_HOME_PATH": str(tmp_path / "here")})["hosts.versions"].found
    assert found == "b: CANN 8.3.RC1, here 8.5.0"


def test_when_nobody_is_asked(machine: Callable[..., Machine], subject: Callable[..., Subject]) -> None:
    (check,) = check_hosts(Subject(probe=machine()))
    assert check.state is State.SKIPPED
    (check,) = check_hosts(subject(machine()))
    assert (check.state, check.found) == (State.SKIPPED, "the recipe has one node")
    without = machine(environ={"PATH": "/nowhere"})
    (check,) = check_hosts(subject(without, hardware=SEVERAL, batch=BATCH))
    assert (check.name, check.state) == ("hosts.ssh", State.ERROR)


@pytest.mark.parametrize(("clock", "off"), [(1000, 0), (999, 0), (1010, 0), (1020, 10), (989, 10), (0, 999)])
def test_a_clock_is_off_when_it_was_never_so_late_meanwhile(clock: int, off: int) -> None:
    text = f"doctor begin\nclock {clock}\ndoctor end\n"
    answer = read_answer(Output(text=text), 1000.0, 1010.0)
    assert (answer.whole, answer.clock_off_seconds) == (True, off)
    assert not read_answer(Output(text="motd\nclock x\n"), 1000.0, 1010.0).whole
