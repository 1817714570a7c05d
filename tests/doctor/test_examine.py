"""The list of checks as a whole; and nothing that a tool may print makes any of them raise."""

from __future__ import annotations

import functools
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsgen.doctor import examine as examined
from dsgen.doctor.cann import known_release
from dsgen.doctor.check import Check, State, Subject, error, ok, warning
from dsgen.doctor.examine import THEMES, Theme, examine, is_fine
from dsgen.doctor.links import parse_conf, parse_paths
from dsgen.doctor.npu_smi import explain_failure, parse_count, parse_info, parse_map, parse_process_memory
from dsgen.doctor.nvidia_smi import parse_devices, parse_processes
from dsgen.doctor.probe import Captured, Machine
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.plan import Plan
from dsgen.recipe.resolve import resolve

from ..conftest import RECIPES
from .conftest import SAMPLES, by_name

PARSERS: tuple[Callable[[str], object], ...] = (
    parse_info,
    parse_map,
    parse_count,
    parse_process_memory,
    explain_failure,
    parse_devices,
    parse_processes,
    parse_conf,
    parse_paths,
    known_release,
)
TEXTS = {path.name: path.read_text() for path in sorted(SAMPLES.iterdir())}
NAMES = (
    "npu-smi-info.txt",
    "npu-smi-info-m.txt",
    "npu-smi-info-l.txt",
    "npu-smi-info-t-topo.txt",
    "npu-smi-info-t-proc-mem-i-0-c-0.txt",
    "hccn_tool.txt",
    "hccn.conf",
    "ascend_toolkit_install.info",
    "driver-version.info",
    "firmware-version.info",
    "environment.txt",
    "packages.txt",
    "nvidia-smi.txt",
)
MORE = st.sampled_from(
    ["|", " ", "\n", "\t", ":", "/", "0", "99999999999999999999", "-", "=", "[", "\x00", "\ufffd", "npu"]
)


@st.composite
def _damaged(draw: st.DrawFn) -> str:
    """A sample that was cut, shuffled or scribbled on; or any text."""
    text = draw(st.sampled_from(list(TEXTS.values())))
    how = draw(st.sampled_from(["whole", "cut", "lines", "words", "scribbled", "anything"]))
    if how == "anything":
        return draw(st.text(max_size=300))
    if how == "cut":
        begin = draw(st.integers(0, len(text)))
        return text[begin : begin + draw(st.integers(0, len(text)))]
    chance = random.Random(draw(st.integers(0, 10**6)))
    if how == "lines":
        lines = text.splitlines(keepends=True)
        chance.shuffle(lines)
        return "".join(lines)
    if how == "words":
        words = text.split(" ")
        chance.shuffle(words)
        return " ".join(words)
    if how == "scribbled":
        for word in draw(st.lists(MORE, min_size=1, max_size=8)):
            place = chance.randrange(len(text) + 1)
            text = text[:place] + word + text[place + chance.randrange(3) :]
    return text


@given(_damaged())
@settings(max_examples=300, deadline=None)
def test_no_parser_raises(text: str) -> None:
    for parse in PARSERS:
        parse(text)


@functools.cache
def _plan(name: str) -> Plan | None:
    return resolve(check_recipe(load_recipe(RECIPES / f"{name}.yaml"))) if name else None


NAMES_OF_PLANS = st.sampled_from(["", "13b-zero2", "70b-zero3-offload", "llama-3.2-1b-910a-fp16", "7b-24g-single-gpu"])


@given(st.dictionaries(st.sampled_from(NAMES), _damaged(), max_size=8), NAMES_OF_PLANS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_no_check_raises_whatever_was_captured(files: dict[str, str], name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for file, text in files.items():
            (Path(folder) / file).write_text(text, encoding="utf-8", errors="replace")
        subject = Subject(probe=Captured(Path(folder)), plan=_plan(name))
        for theme in THEMES:
            if not theme.live and subject.kind in theme.kinds:
                by_name(theme.run(subject))
        by_name(examine(subject))


def test_every_theme_speaks_under_its_name(machine: Callable[..., Machine]) -> None:
    checks = examine(Subject(probe=machine(), plan=_plan("13b-zero2"), quick=True))
    by_name(checks)
    themes = {check.name.split(".")[0] for check in checks}
    assert themes - {"limits"} == {theme.name for theme in THEMES}
    assert not is_fine(checks)


def test_a_simulated_npu_has_no_hardware(machine: Callable[..., Machine]) -> None:
    probe = machine(environ={"ASCEND_HOME_PATH": "/a", "DSGEN_SIMULATED_NPU": "1"})
    checks = by_name(examine(Subject(probe=probe, plan=_plan("tiny-npu"), quick=True)))
    assert checks["devices"].found == checks["links"].found == "simulated NPU: there is no hardware to look at"
    assert "container.devices" not in checks
    assert checks["cann.environment"].state is State.ERROR


def test_only_errors_are_wrong() -> None:
    assert is_fine([ok("a", "b"), warning("a", "b", "c")])
    assert not is_fine([ok("a", "b"), error("a", "b", "c")])


def test_a_check_that_fails_does_not_take_the_others_with_it(
    monkeypatch: pytest.MonkeyPatch, machine: Callable[..., Machine]
) -> None:
    def broken(subject: Subject) -> list[Check]:
        raise ZeroDivisionError("inside")

    def good(subject: Subject) -> list[Check]:
        return [ok("good", "fine")]

    themes = (
        Theme(name="here", run=broken),
        Theme(name="beside", run=broken, apart=True),
        Theme(name="good", run=good, apart=True),
        Theme(name="npu", run=broken, kinds=("npu",)),
        Theme(name="slow", run=broken, slow=True),
    )
    monkeypatch.setattr(examined, "THEMES", themes)
    checks = by_name(examine(Subject(probe=machine(), quick=True)))
    assert checks["here"].state is checks["beside"].state is State.NOT_UNDERSTOOD
    assert checks["here"].found == "a fault of dsgen itself: ZeroDivisionError: inside"
    assert checks["good"].state is State.OK
    assert (checks["npu"].state, checks["npu"].found) == (State.SKIPPED, "no NPU here")
    assert (checks["slow"].state, checks["slow"].found) == (State.SKIPPED, "left out by --quick")


@pytest.mark.parametrize(
    ("files", "programs", "environ", "kind"),
    [
        ({}, {}, {}, "cpu"),
        ({"/dev/davinci3": ""}, {}, {}, "npu"),
        ({"/dev/davinci_manager": ""}, {}, {}, "cpu"),
        ({}, {"npu-smi": ""}, {}, "npu"),
        ({}, {}, {"ASCEND_HOME_PATH": "/a"}, "npu"),
        ({"/dev/nvidia0": ""}, {}, {}, "cuda"),
        ({"/dev/nvidia0": "", "/dev/davinci0": ""}, {}, {}, "npu"),
        ({"/dev/nvidia0": "", "/usr/local/Ascend/driver": ""}, {}, {}, "cuda"),
    ],
)
def test_traces_of_devices(
    machine: Callable[..., Machine],
    files: dict[str, str],
    programs: dict[str, str],
    environ: dict[str, str],
    kind: str,
) -> None:
    probe = machine(files, programs=programs, environ=environ)
    assert Subject(probe=probe).kind == kind
