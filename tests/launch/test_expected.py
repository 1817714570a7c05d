"""The memory estimate of `dsgen launch`: what is said, what is refused, and what a run folder keeps."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsgen.launch.expected import DoesNotFit, expect, keep, lines, refuse
from dsgen.launch.source import Source, read_source
from dsgen.launch.summary import ended_well
from dsgen.memory.estimate import estimate

Write = Callable[..., Path]

SERVER = {"device": "ascend-910b3-64g", "per_node": 8}
TIGHT: dict[str, Any] = {
    "model": "llama-2-13b",
    "precision": {"type": "bf16", "accumulate": "bf16"},
    "activation_checkpointing": "full",
}
TOO_LARGE: dict[str, Any] = {**TIGHT, "batch": {"sequence_length": 4096, "micro": 8, "global": 64}}


@pytest.fixture(autouse=True)
def no_profile_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.fixture
def source(write_recipe: Write) -> Callable[..., Source]:
    def make(**changes: Any) -> Source:
        return read_source(write_recipe(**changes), ())

    return make


def test_a_job_that_fits(source: Callable[..., Source]) -> None:
    made = source(activation_checkpointing="full")
    expected = expect(made, Path("job.yaml"))
    assert expected is not None and made.plan is not None
    report = estimate(made.plan)
    assert report.peak_phase == "backward"
    assert lines(expected) == [
        "memory estimate: fits",
        f"  device {report.device.total_peak_bytes / 2**30:.2f} GiB of 60.96 GiB, highest in the backward pass",
        f"  node {report.host.peak_bytes / 2**30:.2f} GiB of 1024.00 GiB, highest in saving",
    ]
    refuse(expected, made)


def test_a_tight_job_is_warned_of_and_starts(source: Callable[..., Source]) -> None:
    made = source(**TIGHT)
    expected = expect(made, Path("job.yaml"))
    first = lines(expected)[0]
    assert first == "memory estimate: tight: it may fit, but less than the 10% that should stay free is left"
    refuse(expected, made)


def test_what_is_refused_names_a_change_that_makes_it_fit(write_recipe: Write, source: Callable[..., Source]) -> None:
    made = source(**TOO_LARGE)
    with pytest.raises(DoesNotFit) as caught:
        refuse(expect(made, Path("job.yaml")), made)
    error = caught.value
    assert error.exit_code == 1
    report = expect(made, Path("job.yaml"))
    assert report is not None
    needs = f"{report.said.total_peak_bytes / 2**30:.2f} GiB (largest part: weights)"
    assert error.message == f"the job does not fit: a device has 60.96 GiB and the loss needs {needs}"
    assert error.help.endswith("; --force starts it anyway")
    sets = re.split(r", or with ", error.help)
    assert 1 <= len(sets) <= 2
    for each in sets:
        overrides = re.findall(r"--set (\S+)", each)
        assert overrides
        changed = expect(read_source(write_recipe(**TOO_LARGE), overrides), Path("job.yaml"))
        assert changed is not None and changed.said.verdict == "fits"
        assert f"device {changed.said.total_peak_bytes / 2**30:.2f} GiB" in each


def test_the_host_may_be_the_reason(source: Callable[..., Source]) -> None:
    made = source(
        model="llama-2-70b",
        zero={"stage": 3, "offload": {"optimizer": "cpu", "parameters": "cpu"}},
        activation_checkpointing="full",
        hardware={**SERVER, "host_memory": "256GiB"},
    )
    with pytest.raises(DoesNotFit) as caught:
        refuse(expect(made, Path("job.yaml")), made)
    assert caught.value.message.startswith("the job does not fit: a node has 256.00 GiB and ")
    assert "of host memory (largest part: gradients)" in caught.value.message


def test_where_no_setting_helps(source: Callable[..., Source]) -> None:
    made = source(model="llama-2-70b", zero={"stage": 3}, hardware={**SERVER, "host_memory": "32GiB"})
    with pytest.raises(DoesNotFit) as caught:
        refuse(expect(made, Path("job.yaml")), made)
    assert "it takes more devices or hosts, or a smaller model" in caught.value.help


def test_an_unknown_memory_is_one_line_more(write_recipe: Write, source: Callable[..., Source]) -> None:
    made = source(hardware={"device": "cpu", "per_node": 2})
    said = lines(expect(made, Path("job.yaml")))
    assert said[0].startswith("memory estimate: unknown: neither the device's memory nor the host's is known")
    assert len(said) == 2 and re.match(r"  node \d+\.\d\d GiB, highest in ", said[1])


def test_a_script_of_ones_own_is_estimated_too(tmp_path: Path, source: Callable[..., Source]) -> None:
    (tmp_path / "mine.py").write_text("pass\n")
    own = expect(source(activation_checkpointing="full", entrypoint="mine.py"), Path("job.yaml"))
    usual = expect(source(activation_checkpointing="full"), Path("job.yaml"))
    assert own is not None and usual is not None
    assert own.record["own_script"] and not usual.record["own_script"]
    assert own.said.total_peak_bytes == usual.said.total_peak_bytes


class TestFolders:
    """What a folder tells of its memory."""

    @pytest.fixture
    def run(self, tmp_path: Path, source: Callable[..., Source]) -> Path:
        """The folder of a run that was started although it does not fit."""
        made = source(**TOO_LARGE)
        folder = tmp_path / "run"
        made.write(folder)
        expected = expect(made, Path("job.yaml"))
        assert expected is not None
        keep(expected, made, folder)
        return folder

    def test_a_rendered_one_holds_no_recipe(self, run: Path) -> None:
        (run / "estimate.json").unlink()
        expected = expect(read_source(run, ()), run)
        assert expected is None
        (line,) = lines(expected)
        assert line.startswith("memory estimate: none, because a rendered folder holds no recipe")

    def test_a_run_says_its_estimate_again(self, run: Path) -> None:
        again = read_source(run, ())
        expected = expect(again, run)
        assert lines(expected)[0] == "memory estimate: does not fit (made when this run was first started)"
        with pytest.raises(DoesNotFit) as caught:
            refuse(expected, again)
        assert caught.value.help.startswith("`dsgen estimate` of its recipe says what would make it fit; --force")

    def test_a_run_whose_files_were_changed_does_not(self, run: Path) -> None:
        (run / "ds_config.json").write_text("{}\n")
        assert expect(read_source(run, ()), run) is None

    @pytest.mark.parametrize("damage", ["", "[]", "{", '{"files": {}}', "[" * 100_000, b"\xff"])
    def test_a_damaged_estimate_is_none(self, run: Path, damage: str | bytes) -> None:
        (run / "estimate.json").write_bytes(damage if isinstance(damage, bytes) else damage.encode())
        assert expect(read_source(run, ()), run) is None

    @pytest.mark.parametrize("field", ["verdict", "total_peak_bytes", "capacity_bytes", "peak_phase", "device_profile"])
    def test_a_field_of_a_wrong_type_is_none_too(self, run: Path, field: str) -> None:
        kept = json.loads((run / "estimate.json").read_text())
        (run / "estimate.json").write_text(json.dumps({**kept, field: [1]}))
        assert expect(read_source(run, ()), run) is None


def test_what_a_report_says_is_shown_at_the_end(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"what": "load", "estimated_bytes": 3 << 20, "measured_bytes": 4 << 20},
        {"what": "allocated", "estimated_bytes": 50 << 30, "measured_bytes": 49 << 30},
        {"what": "reserved", "estimated_bytes": None, "measured_bytes": 1},
        "nonsense",
    ]
    said = ended_well({"status": "finished", "steps": 3, "memory": {"compared": rows}}, tmp_path)
    assert [line.split() for line in said[1:4]] == [
        ["memory", "estimated", "measured"],
        ["load", "3.0", "MiB", "4.0", "MiB"],
        ["allocated", "50.00", "GiB", "49.00", "GiB"],
    ]
    for memory in (None, 3, {"compared": 3}, {"compared": []}, {}):
        assert len(ended_well({"status": "finished", "steps": 3, "memory": memory}, tmp_path)) == 2
