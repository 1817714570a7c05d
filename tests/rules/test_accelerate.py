from __future__ import annotations

import pytest

from dsgen.findings import Finding, Severity

from .linted import lint_text, said

SECTION = "deepspeed_config"


def lint(section: str = "zero_stage: 2", *, top: str = "", type: str = "DEEPSPEED", **job: object) -> list[Finding]:
    text = f"distributed_type: {type}\nnum_processes: 8\n{SECTION}: {{{section}}}\n{top}\n"
    return lint_text(text, "accelerate.yaml", **job)


@pytest.mark.parametrize(
    ("section", "top"),
    [
        ("zero_stage: 2", ""),
        ("zero_stage: '3', zero3_init_flag: true, zero3_save_16bit_model: true", "mixed_precision: bf16"),
        ("zero_stage: 2, offload_optimizer_device: cpu, offload_param_device: none", "mixed_precision: 'no'"),
        ("zero_stage: 0, gradient_clipping: auto, gradient_accumulation_steps: null", "downcast_bf16: 'no'"),
        ("zero_stage: 1, deepspeed_multinode_launcher: standard", "num_machines: 1\nmachine_rank: 0"),
        ("zero_stage: 2, mixed_precision: bf16", "fp16: false\ndynamo_backend: 'NO'"),
        ("zero_stage: 2, gradient_accumulation_steps: 4, gradient_clipping: 0.5", "tpu_env: []\nuse_cpu: false"),
    ],
)
def test_nothing_is_found_in_a_good_config(section: str, top: str) -> None:
    assert [each for each in lint(section, top=top) if each.severity is not Severity.INFO] == []


@pytest.mark.parametrize(
    ("section", "top", "expected"),
    [
        ("zero_stage: 2", "foo: 1", ("ACC003", "error", "foo")),
        ("zero_stage: 2", "zero3_init_flag: true", ("ACC003", "error", "zero3_init_flag")),
        ("zero_stage: 2, offload_optimizer: cpu", "", ("ACC004", "error", f"{SECTION}.offload_optimizer")),
        ("zero_stage: 2, bf16: {enabled: true}", "", ("ACC004", "error", f"{SECTION}.bf16")),
        ("zero_stage: two", "", ("ACC007", "error", f"{SECTION}.zero_stage")),
        ("zero_stage: true", "", ("ACC007", "error", f"{SECTION}.zero_stage")),
        ("zero_stage: 2, zero3_init_flag: maybe", "", ("ACC007", "error", f"{SECTION}.zero3_init_flag")),
        ("zero_stage: 2, gradient_clipping: none", "", ("ACC007", "error", f"{SECTION}.gradient_clipping")),
        (
            "zero_stage: 2, gradient_accumulation_steps: 2.0",
            "",
            ("ACC007", "error", f"{SECTION}.gradient_accumulation_steps"),
        ),
        (
            "zero_stage: 2, gradient_accumulation_steps: auto",
            "",
            ("ACC007", "warning", f"{SECTION}.gradient_accumulation_steps"),
        ),
        ("zero_stage: 2", "mixed_precision: fp32", ("ACC007", "error", "mixed_precision")),
        ("zero_stage: 2", "mixed_precision: no", ("ACC007", "error", "mixed_precision")),
        ("zero_stage: 2", "mixed_precision: false", ("ACC007", "error", "mixed_precision")),
        ("zero_stage: null", "", ("ACC008", "info", f"{SECTION}.zero_stage")),
        ("zero_stage: 2, zero3_init_flag: 'on'", "", ("ACC009", "warning", f"{SECTION}.zero3_init_flag")),
        ("zero_stage: 1, zero3_save_16bit_model: true", "", ("ACC009", "warning", f"{SECTION}.zero3_save_16bit_model")),
        (
            "zero_stage: 2, offload_optimizer_nvme_path: /nvme",
            "",
            ("ACC010", "warning", f"{SECTION}.offload_optimizer_nvme_path"),
        ),
        (
            "zero_stage: 3, offload_optimizer_device: nvme, offload_optimizer_nvme_path: /nvme",
            "",
            ("ACC010", "error", f"{SECTION}.offload_optimizer_nvme_path"),
        ),
        (
            "zero_stage: 3, offload_optimizer_device: nvme",
            "",
            ("ACC010", "warning", f"{SECTION}.offload_optimizer_device"),
        ),
        ("zero_stage: 2", "num_machines: 2", ("ACC011", "warning", "num_machines")),
        (
            "zero_stage: 2, deepspeed_hostfile: no-such-folder/hostfile",
            "num_machines: 2",
            ("ACC016", "warning", f"{SECTION}.deepspeed_hostfile"),
        ),
        ("zero_stage: 2, deepspeed_hostfile: no-such-folder/hostfile", "num_machines: 1", None),
        (
            "zero_stage: 2, deepspeed_hostfile: no-such-folder/hostfile, deepspeed_multinode_launcher: standard",
            "num_machines: 2",
            None,
        ),
        (
            "zero_stage: 2, deepspeed_multinode_launcher: standard",
            "num_machines: 3",
            ("ACC013", "warning", "num_processes"),
        ),
        ("zero_stage: 2, gradient_clipping: 0", "", ("ACC015", "warning", f"{SECTION}.gradient_clipping")),
    ],
)
def test_findings(section: str, top: str, expected: tuple[str, str, str] | None) -> None:
    found = lint(section, top=top)
    wanted = [expected] if expected else []
    assert said([each for each in found if each.code.startswith("ACC")]) == wanted
    assert [each.code for each in found if each.severity is Severity.ERROR] in ([], [code for code, _, _ in wanted])


def test_a_launcher_that_nobody_has() -> None:
    found = lint("zero_stage: 2, deepspeed_multinode_launcher: mpirun", top="num_machines: 2")
    assert ("ACC012", "error", f"{SECTION}.deepspeed_multinode_launcher") in said(found)


@pytest.mark.parametrize(
    ("said_of_it", "machines", "severity"),
    [
        ("", 1, "warning"),
        ("num_processes: -1", 1, "warning"),
        ("num_processes: null", 1, "warning"),
        ("num_processes: 0", 1, "error"),
        ("num_processes: -2", 1, "error"),
        ("num_processes: 2.0", 1, "error"),
        ("num_processes: true", 1, "error"),
        ("num_processes: '2'", 1, None),
        ("num_processes: '2'", 2, "error"),
        ("num_processes: 1", 2, "error"),
        ("num_processes: 2", 2, None),
    ],
)
def test_processes(said_of_it: str, machines: int, severity: str | None) -> None:
    text = f"distributed_type: DEEPSPEED\n{said_of_it}\nnum_machines: {machines}\n"
    text += f"{SECTION}: {{zero_stage: 2, deepspeed_multinode_launcher: standard}}\n"
    found = said(lint_text(text, "accelerate.yaml"))
    assert found == ([("ACC017", severity, "num_processes")] if severity else [])


def test_messages_speak_of_accelerates_keys() -> None:
    found = [each for each in lint("zero_stage: 7, offload_optimizer_device: gpu") if each.code == "KEY003"]
    assert [each.message.partition(":")[0] for each in found] == ["zero_stage", "offload_optimizer_device"]


@pytest.mark.parametrize(("type", "help"), [("deepspeed", "write DEEPSPEED"), ("DEEPSPED", "write DEEPSPEED")])
def test_types_are_written_in_capitals(type: str, help: str) -> None:
    (finding,) = lint(type=type)
    assert (finding.code, finding.severity.value, finding.help) == ("ACC001", "error", help)
    assert bool(finding.fix) == (type == "deepspeed")


def test_no_type() -> None:
    assert said(lint_text("deepspeed_config: {zero_stage: 2}\n", "accelerate.yaml")) == [("ACC001", "error", "")]


def test_a_section_for_another_type_is_not_judged() -> None:
    assert said(lint("zero_stage: two", type="MULTI_NPU")) == [("ACC002", "warning", SECTION)]


def test_sagemaker_has_other_keys() -> None:
    text = "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: DATA_PARALLEL\nec2_instance_type: x\n"
    assert lint_text(text, "accelerate.yaml") == []


def test_a_misspelt_key_is_repaired() -> None:
    (finding,) = lint("zero_stage: 3, offload_params_device: cpu")
    assert finding.help.startswith("did you mean offload_param_device")
    assert [(edit.action, edit.to) for edit in finding.fix] == [("rename", (SECTION, "offload_param_device"))]


def test_keys_of_a_ds_config_belong_in_a_file() -> None:
    (finding,) = lint("zero_stage: 3, bf16: {enabled: true}")
    assert finding.help == "write it in a ds_config.json, and name that with deepspeed_config_file"


def test_the_default_of_clipping_is_that_of_the_version() -> None:
    (finding,) = lint("zero_stage: 2, gradient_clipping: 0.0")
    assert "DeepSpeed 0.19.8 clips to 1" in finding.message


def test_the_clash_with_a_file() -> None:
    findings = lint(
        "deepspeed_config_file: '{\"zero_optimization\": {}}', zero_stage: null, zero3_init_flag: true",
        top="mixed_precision: bf16",
    )
    assert said(findings) == [("ACC005", "error", f"{SECTION}.zero_stage"), ("ACC005", "error", "mixed_precision")]


@pytest.mark.parametrize("section", ["[1]", "3", "text", "true"])
def test_a_section_that_is_no_mapping(section: str) -> None:
    text = f"distributed_type: DEEPSPEED\n{SECTION}: {section}\n"
    assert ("ACC007", "error", SECTION) in said(lint_text(text, "accelerate.yaml"))
