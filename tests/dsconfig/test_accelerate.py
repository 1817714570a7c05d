"""What accelerate makes of its own settings, and the file that it reads instead of them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgen.documents.yaml_reader import read_yaml_text
from dsgen.dsconfig.accelerate import accelerate_findings, accelerates_config
from dsgen.dsconfig.job import Job
from dsgen.findings import Finding
from dsgen.lint.lint import lint_bytes, lint_file
from dsgen.lint.options import Options
from dsgen.rules.accelerate import KEYS, TOP_KEYS

HEAD = "distributed_type: DEEPSPEED\nnum_processes: 8\n"


def findings(text: str, file: str = "accelerate.yaml", job: Job | None = None) -> list[Finding]:
    found, _ = accelerate_findings(read_yaml_text(HEAD + text, file), job or Job())
    return list(found)


def section(**values: Any) -> dict[str, Any]:
    return {"distributed_type": "DEEPSPEED", "deepspeed_config": values}


def test_the_config_that_accelerate_makes() -> None:
    said = section(
        zero_stage=3,
        offload_optimizer_device="CPU",
        offload_param_device="nvme",
        offload_param_nvme_path="/nvme",
        gradient_accumulation_steps=4,
        gradient_clipping="0.5",
        zero3_save_16bit_model=True,
    )
    assert accelerates_config({**said, "mixed_precision": "bf16"}) == {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 0.5,
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "offload_param": {"device": "nvme", "nvme_path": "none"},
            "stage3_gather_16bit_weights_on_model_save": True,
        },
        "fp16": {"enabled": False},
        "bf16": {"enabled": True},
    }


def test_what_is_not_said_is_left_to_the_script() -> None:
    config = accelerates_config(section())
    assert config["zero_optimization"] == {"stage": 2}
    assert (config["gradient_accumulation_steps"], config["gradient_clipping"]) == ("auto", "auto")
    assert config["bf16"] == config["fp16"] == {"enabled": "auto"}
    assert accelerates_config({**section(), "mixed_precision": "fp8"})["bf16"] == {"enabled": True}


def test_the_rules_for_a_ds_config_speak_of_accelerates_keys() -> None:
    (finding,) = findings("deepspeed_config:\n  zero_stage: 2\n  offload_param_device: cpu\n")
    assert (finding.code, finding.path) == ("OFF001", "deepspeed_config.offload_param_device")
    assert (finding.position.line, finding.position.column) == (5, 3)
    assert "deepspeed_config.offload_param_device" in finding.message
    assert finding.fix == ()


def test_a_stage_that_does_not_exist() -> None:
    (finding,) = findings("deepspeed_config: {zero_stage: 4}\n")
    assert (finding.code, finding.path) == ("KEY003", "deepspeed_config.zero_stage")


def test_ranks_are_accelerates_processes(tmp_path: Path) -> None:
    config = tmp_path / "ds.json"
    config.write_text(json.dumps({"train_batch_size": 12, "zero_optimization": {"stage": 2}}))
    text = f"deepspeed_config: {{deepspeed_config_file: {config}}}\n"
    found = [each for each in findings(text) if each.severity.value == "error"]
    assert found and {each.position.file for each in found} == {str(config)}
    assert "12" in found[0].message and "8" in found[0].message


def write(folder: Path, config: Any, named: str = "ds.json") -> Path:
    (folder / "ds.json").write_text(config if isinstance(config, str) else json.dumps(config))
    path = folder / "accelerate.yaml"
    path.write_text(f"{HEAD}deepspeed_config:\n  deepspeed_config_file: {named}\n")
    return path


def test_the_file_is_linted_and_shown(tmp_path: Path) -> None:
    path = write(tmp_path, {"train_batch_size": "auto", "zero_optimization": {"stage": 2, "overlap_com": True}})
    linted = lint_file(path, Options())
    assert linted is not None
    (finding,) = [each for each in linted.findings if each.severity.value == "error"]
    assert finding.code == "KEY001"
    assert finding.position.file == str(tmp_path / "ds.json")
    assert "overlap_com" in linted.sources[finding.position.file]


def test_the_current_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "ds.json").write_text('{"zero_optimization": {"stage": 9}}')
    path = write(tmp_path, {"zero_optimization": {"stage": 2}})
    monkeypatch.chdir(here)
    linted = lint_file(path, Options())
    assert linted is not None
    assert [each.position.file for each in linted.findings if each.code == "KEY003"] == ["ds.json"]


def test_the_file_is_for_a_trainer(tmp_path: Path) -> None:
    path = write(tmp_path, '{"zero_optimization": {"stage": 2}, // json.load stops here\n "train_batch_size": "auto"}')
    linted = lint_file(path, Options())
    assert linted is not None
    assert [(each.code, each.severity.value) for each in linted.findings if each.code == "REA002"] == [
        ("REA002", "error")
    ]


@pytest.mark.parametrize(
    ("content", "code"), [("{", "DOC001"), ("[]", "REA007"), ('{"train_micro_batch_size_per_gpu": 1}', "ACC014")]
)
def test_a_file_that_accelerate_refuses(tmp_path: Path, content: str, code: str) -> None:
    linted = lint_file(write(tmp_path, content), Options())
    assert linted is not None
    assert code in {each.code for each in linted.findings if each.severity.value == "error"}


@pytest.mark.parametrize("named", ["no.json", "~/ds.json", "/no/such/ds.json", "a" * 5000])
def test_a_file_that_is_not_there(tmp_path: Path, named: str) -> None:
    linted = lint_file(write(tmp_path, {}, named), Options())
    assert linted is not None
    (finding,) = linted.findings
    assert (finding.code, finding.severity.value) == ("ACC006", "warning")
    assert finding.position.line == 4


def test_a_config_in_place_of_a_files_name() -> None:
    config = json.dumps({"train_micro_batch_size_per_gpu": 1})
    for text in (config, base64.urlsafe_b64encode(config.encode()).decode()):
        assert [each.code for each in findings(f"deepspeed_config: {{deepspeed_config_file: '{text}'}}\n")] == [
            "ACC014"
        ]


@pytest.mark.parametrize(
    ("hosts", "expected"),
    [("w0 slots=4\nw1:4\n", [("HST001", 2)]), ("w0 slots=4\nw1 slots=4\n", []), ("\xff", [("DOC001", 1)])],
)
def test_the_hostfile_is_linted_and_shown(tmp_path: Path, hosts: str, expected: list[tuple[str, int]]) -> None:
    (tmp_path / "hosts").write_bytes(hosts.encode("latin-1"))
    path = tmp_path / "accelerate.yaml"
    path.write_text(f"{HEAD}num_machines: 2\ndeepspeed_config: {{zero_stage: 2, deepspeed_hostfile: hosts}}\n")
    linted = lint_file(path, Options())
    assert linted is not None
    found = [each for each in linted.findings if each.severity.value != "info"]
    assert [(each.code, each.position.line) for each in found] == expected
    assert {each.position.file for each in found} <= {str(tmp_path / "hosts")}


def test_a_config_in_json(tmp_path: Path) -> None:
    path = tmp_path / "accelerate.json"
    path.write_text(
        '{"distributed_type": "DEEPSPEED", "num_processes": 8, "deepspeed_config": {"zero_stage": 2, "zero_stag": 3}}'
    )
    linted = lint_file(path, Options())
    assert linted is not None and linted.kind == "accelerate"
    assert [(each.code, each.path) for each in linted.findings] == [("ACC004", "deepspeed_config.zero_stag")]


NAMES = st.text("aZ_.", max_size=3)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "auto", "none", "2", "nvme", "no"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=2),
    max_leaves=3,
)


@given(
    st.dictionaries(st.sampled_from(sorted(TOP_KEYS - {"deepspeed_config"})) | NAMES, VALUES, max_size=4),
    st.dictionaries(st.sampled_from(sorted(KEYS)) | NAMES, VALUES, max_size=6) | VALUES,
)
def test_any_values_can_be_linted(top: dict[str, Any], inside: Any) -> None:
    text = json.dumps({**top, "distributed_type": "DEEPSPEED", "deepspeed_config": inside})
    linted = lint_bytes(text.encode(), "accelerate.json", Options())
    assert linted is not None and linted.kind == "accelerate"
