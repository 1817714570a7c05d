from __future__ import annotations

from typing import Any

import pytest

from dsgen.catalog.deepspeed_keys import load_keys
from dsgen.rules.key_values import value_problem
from dsgen.rules.keys import WITHOUT_EFFECT
from dsgen.rules.unknown_keys import LAUNCHER_KEYS

from .conftest import Case, Findings
from .linted import lint_config

CASES = [
    Case(
        code="KEY001",
        path="deepspeed.zero_optimisation",
        wrong="deepspeed:\n  zero_optimisation: {stage: 2} # here",
        right="deepspeed:\n  zero_optimization: {stage: 2}",
    ),
    Case(
        code="KEY001",
        path="zero.overlap_com",
        wrong="zero:\n  stage: 2\n  overlap_com: true # here",
        right="zero:\n  stage: 2\n  overlap_comm: true",
    ),
    Case(
        code="KEY001",
        path="deepspeed.aio.thread_count",
        wrong="deepspeed: {aio: {thread_count: 2}} # here",
        right="deepspeed: {aio: {intra_op_parallelism: 2}}",
    ),
    Case(
        code="KEY001",
        path="deepspeed.zero_optimization.stage",
        wrong="deepspeed: {zero_optimization.stage: 3} # here",
        right="deepspeed: {tensor_parallel: {partition_config: {a.b: 3}}}",
    ),
    Case(
        code="KEY002",
        path="deepspeed.amp",
        wrong="deepspeed: {amp: {enabled: false}} # here",
        right="deepspeed: {torch_autocast: {enabled: false}}",
    ),
    Case(
        code="KEY002",
        path="zero.mics_shard_size",
        wrong="zero: {stage: 3, mics_shard_size: -1} # here",
        right="zero: {stage: 3, zero_hpz_partition_size: 8}",
    ),
    Case(
        code="KEY003",
        path="deepspeed.gradient_clipping",
        wrong="deepspeed: {gradient_clipping: -1} # here",
        right="deepspeed: {gradient_clipping: 0}",
    ),
    Case(
        code="AUT002",
        path="zero.reduce_bucket_size",
        wrong="zero: {stage: 2, reduce_bucket_size: auto} # here",
        right="zero: {stage: 2, reduce_bucket_size: 5e7}",
    ),
    Case(
        code="KEY003",
        path="deepspeed.tensorboard.enabled",
        wrong="deepspeed:\n  tensorboard:\n    enabled: 'true' # here",
        right="deepspeed:\n  tensorboard:\n    enabled: true",
    ),
    Case(
        code="KEY003",
        path="deepspeed.gradient_predivide_factor",
        wrong="deepspeed: {gradient_predivide_factor: .inf} # here",
        right="deepspeed: {gradient_predivide_factor: 1.0}",
    ),
    Case(
        code="KEY003",
        path="deepspeed.zero_optimization",
        wrong="deepspeed: {zero_optimization: 3} # here",
        right="deepspeed: {zero_optimization: {}}",
    ),
    Case(
        code="KEY003",
        path="deepspeed.optimizer.params",
        wrong="deepspeed: {optimizer: {params: 3}} # here",
        right="deepspeed: {optimizer: {params: {}}}",
    ),
    Case(
        code="KEY004",
        path="deepspeed.train_batch_size",
        wrong="deepspeed: {train_batch_size: 128} # here",
        right="deepspeed: {train_batch_size: 64}",
    ),
    Case(
        code="KEY004",
        path="deepspeed.train_batch_size",
        wrong="deepspeed: {train_batch_size: null} # here",
        right="deepspeed: {steps_per_print: null}",
    ),
    Case(
        code="KEY004",
        path="deepspeed.gradient_accumulation_steps",
        wrong="deepspeed: {gradient_accumulation_steps: 8} # here",
        right="deepspeed: {communication_data_type: fp32}",
    ),
    Case(
        code="KEY004",
        path="deepspeed.gradient_clipping",
        wrong="gradient_clipping: 0.5\ndeepspeed: {gradient_clipping: 2.0} # here",
        right="gradient_clipping: 2\ndeepspeed: {gradient_clipping: 2.0}",
    ),
    Case(
        code="KEY004",
        path="zero.offload_optimizer.device",
        wrong="zero:\n  stage: 2\n  offload_optimizer:\n    device: cpu # here",
        right="zero:\n  stage: 2\n  offload: {optimizer: cpu}\n  offload_optimizer: {device: cpu}",
    ),
    Case(
        code="KEY004",
        path="deepspeed.zero_optimization",
        wrong="deepspeed: {zero_optimization: true} # here",
        right="deepspeed: {zero_optimization: {overlap_comm: true}}",
    ),
    Case(
        code="KEY004",
        path="deepspeed.zero_optimization.offload_optimizer",
        wrong="zero: {stage: 2, offload: {optimizer: cpu}}\n"
        "deepspeed: {zero_optimization: {offload_optimizer: null}} # here",
        right="zero: {stage: 2, offload: {optimizer: cpu}}\n"
        "deepspeed: {zero_optimization: {offload_optimizer: {pin_memory: false}}}",
    ),
    Case(
        code="KEY004",
        path="deepspeed.zero_optimization.overlap_comm",
        wrong="zero: {stage: 2, overlap_comm: true}\ndeepspeed: {zero_optimization: {overlap_comm: false}} # here",
        right="zero: {stage: 2}\ndeepspeed: {zero_optimization: {overlap_comm: false}}",
    ),
    Case(
        code="KEY004",
        path="deepspeed.fp16.loss_scale",
        wrong="precision: fp16\ndeepspeed: {fp16: {loss_scale: 128}} # here",
        right="precision: fp16\ndeepspeed: {fp16: {hysteresis: 3}}",
    ),
    Case(
        code="KEY004",
        path="deepspeed.bf16.enabled",
        wrong="deepspeed: {bf16: {enabled: false}} # here",
        right="deepspeed: {bf16: {enabled: true}}",
    ),
    Case(
        code="KEY004",
        path="deepspeed.data_types.grad_accum_dtype",
        wrong="deepspeed: {data_types: {grad_accum_dtype: bf16}} # here",
        right="precision: {type: bf16, accumulate: bf16}\ndeepspeed: {data_types: {grad_accum_dtype: bf16}}",
    ),
    Case(
        code="KEY004",
        path="deepspeed.optimizer.params.lr",
        wrong="deepspeed: {optimizer: {params: {lr: 1.0}}} # here",
        right="deepspeed: {optimizer: {params: {lr: 2e-5, weight_decay: 0.1}}}",
    ),
    Case(
        code="KEY004",
        path="deepspeed.scheduler",
        wrong="deepspeed:\n  scheduler: {params: {warmup_num_steps: 10}} # here",
        right="schedule: {type: WarmupLR}\ndeepspeed:\n  scheduler: {params: {warmup_num_steps: 10}}",
    ),
    Case(
        code="KEY004",
        path="deepspeed.scheduler.type",
        wrong="schedule: {type: WarmupLR}\ndeepspeed: {scheduler: {type: OneCycle}} # here",
        right="schedule: {type: WarmupLR}\ndeepspeed: {scheduler: {type: WarmupLR}}",
    ),
    Case(
        code="KEY005",
        path="zero.cpu_offload",
        wrong="zero: {stage: 2, cpu_offload: true} # here",
        right="zero: {stage: 2, offload: {optimizer: cpu}}",
    ),
    Case(
        code="KEY006",
        path="zero.stage3_max_live_parameters",
        wrong="zero:\n  stage: 3\n  max_live_parameters: 1000\n  stage3_max_live_parameters: 2000 # here",
        right="zero:\n  stage: 3\n  max_live_parameters: 1000\n  stage3_max_reuse_distance: 2000",
    ),
    Case(
        code="KEY006",
        path="deepspeed.bfloat16",
        wrong="deepspeed:\n  bf16: {enabled: true}\n  bfloat16: {enabled: true} # here",
        right="deepspeed:\n  bfloat16: {enabled: true}",
    ),
    *(
        Case(
            code="KEY007",
            path=f"deepspeed.{key}",
            wrong=f"deepspeed: {{{key}: {value}}} # here",
            right="deepspeed: {wall_clock_breakdown: true}",
        )
        for key, value in (
            ("activation_checkpointing", "{partition_activations: true}"),
            ("autotuning", "{enabled: true}"),
            ("compile", "{deepcompile: true}"),
            ("data_efficiency", "{enabled: true}"),
            ("dataloader_drop_last", "true"),
            ("disable_allgather", "true"),
            ("pipeline", "{stages: 2}"),
            ("vocabulary_size", "100"),
        )
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case(case: Case, findings: Findings) -> None:
    case.verify(findings)


@pytest.mark.parametrize(
    ("fields", "help"),
    [
        ("zero: {stage: 2, stag: 3}", "did you mean stage?"),
        ("zero: {stage: 2, ofload: {optimizer: cpu}}", "did you mean offload?"),
        ("zero: {stage: 3, max_live_parameter: 3}", "did you mean stage3_max_live_parameters?"),
        ("deepspeed: {bf_16: {enabled: true}}", "did you mean bf16"),
        ("deepspeed: {xyzzy: 1}", "remove it"),
        ("deepspeed: {'': 1}", "remove it"),
    ],
)
def test_unknown_keys_get_the_nearest_name(fields: str, help: str, findings: Findings) -> None:
    (found,) = findings(fields)
    assert found.code == "KEY001"
    assert found.help.startswith(help)


@pytest.mark.parametrize(
    ("fields", "help"),
    [
        ("deepspeed: {stage: 3}", "write it as zero.stage"),
        ("deepspeed: {zero_optimization: {gradient_clipping: 1}}", "write it as gradient_clipping"),
        ("deepspeed: {overlap_comm: true}", "write it as zero.overlap_comm"),
    ],
)
def test_keys_of_other_sections_are_sent_there(fields: str, help: str, findings: Findings) -> None:
    (found,) = findings(fields)
    assert (found.code, found.help) == ("KEY009", help)


@pytest.mark.parametrize("name", LAUNCHER_KEYS)
def test_settings_of_the_launcher(name: str, findings: Findings) -> None:
    (found,) = findings(f"deepspeed: {{{name}: 1}}")
    assert (found.code, found.path) == ("KEY010", f"deepspeed.{name}")


@pytest.mark.parametrize("name", ["_comment", "//", "#note", "comment", "_read_the_docs"])
def test_comments_are_no_settings(name: str, findings: Findings) -> None:
    (found,) = findings(f"deepspeed: {{'{name}': hello}}")
    assert found.code == "KEY008"


def test_the_schema_of_editors_is_nothing(findings: Findings) -> None:
    assert findings("deepspeed: {$schema: ds_config.schema.json}") == []


def test_the_old_name_is_answered_in_the_recipes_words(findings: Findings) -> None:
    (found,) = findings("zero: {stage: 3, cpu_offload: true}")
    assert found.help == "write zero.offload.optimizer"


def test_keys_without_effect_are_known_ones() -> None:
    assert all(load_keys().get(key) is not None for key in WITHOUT_EFFECT)
    assert {case.path.rpartition(".")[2] for case in CASES if case.code == "KEY007"} == set(WITHOUT_EFFECT)


@pytest.mark.parametrize(
    ("path", "value", "problem"),
    [
        ("zero_optimization.stage", 2.0, None),
        ("zero_optimization.stage", 2.5, "expected a whole number, got 2.5"),
        ("zero_optimization.stage", 4, "expected one of 0, 1, 2, 3, got 4"),
        ("zero_optimization.stage", True, "expected a whole number, got true"),
        ("zero_optimization.overlap_comm", None, None),
        ("zero_optimization.overlap_comm", 1, "expected true or false or null, got 1"),
        ("communication_data_type", "BF16", None),
        ("communication_data_type", "bfloat16", "expected one of bf16, fp16, fp32, got 'bfloat16'"),
        ("zero_optimization.offload_optimizer.ratio", 1.5, "expected at most 1, got 1.5"),
        ("zero_optimization.reduce_bucket_size", 0, "expected more than 0, got 0"),
        ("zero_optimization.zenflow.topk_ratio", 1, "expected less than 1, got 1"),
        ("zero_optimization.zenflow.select_interval", "auto", None),
        ("compile.passes", ["z1", "zz"], "expected one of autosp, autotp, z1, z3, got 'zz'"),
        ("zero_optimization.leaf_module.names", {}, "expected text or a list, got a mapping"),
        ("wandb.team", "x" * 100, None),
    ],
)
def test_values(path: str, value: object, problem: str | None) -> None:
    key = load_keys().get(path)
    assert key is not None
    assert value_problem(key, value) == problem


@pytest.mark.parametrize(
    ("config", "version", "name"),
    [
        ({"aio": {"thread_count": 2}}, "0.19.8", "intra_op_parallelism"),
        ({"aio": {"intra_op_parallelism": 2}}, "0.16.3", "thread_count"),
        ({"seq_parallel_comm_data_type": "fp32"}, "0.19.8", "seq_parallel_communication_data_type"),
    ],
)
def test_keys_that_were_renamed(config: dict[str, Any], version: str, name: str) -> None:
    (found,) = lint_config(config, "KEY001", deepspeed=version)
    assert found.help == f"did you mean {name}?"


@pytest.mark.parametrize(
    ("config", "version", "history"),
    [
        ({"aio": {"thread_count": 2}}, "0.19.8", "ignored without a word (0.16.3 was the last to know it)"),
        ({"aio": {"intra_op_parallelism": 2}}, "0.16.3", "ignored without a word (it comes with 0.16.4)"),
        ({"zero_optimization": {"compute_grad_norm": True}}, "0.19.2", "refuses to start (it comes with 0.19.7)"),
        ({"zero_optimization": {"xyzzy": True}}, "0.19.2", "refuses to start"),
    ],
)
def test_keys_of_other_versions(config: dict[str, Any], version: str, history: str) -> None:
    (found,) = lint_config(config, "KEY001", deepspeed=version)
    assert found.message.endswith(history)


@pytest.mark.parametrize("name", ["seed", "hidden_size", "num_epochs", "mpu", "block_size"])
def test_keys_of_far_sections_are_only_unknown(name: str) -> None:
    (found,) = lint_config({name: 1}, "KEY")
    assert (found.code, found.help, found.fix) == ("KEY001", "remove it", ())


def test_a_section_that_the_config_has_may_be_meant() -> None:
    (found,) = lint_config({"block_size": 1, "aio": {"queue_depth": 8}}, "KEY")
    assert (found.code, found.help, found.fix) == ("KEY009", "write it as aio.block_size", ())


CPU = {"device": "cpu"}


@pytest.mark.parametrize(
    ("changes", "to"),
    [
        ({"offload_optimizer": CPU}, ("zero_optimization", "offload_optimizer")),
        ({"offload_optimizer": CPU, "zero_optimization": None}, None),
        ({"offload_optimizer": CPU, "zero_optimization": {"overlap_comm": True}}, None),
        ({"offload_param": CPU}, None),
        ({"offload_param": CPU, "zero_optimization": {"stage": 3}}, ("zero_optimization", "offload_param")),
        ({"overlap_comm": True, "zero_optimization": None}, None),
        ({"optimizer": {"type": "AdamW", "lr": 1e-4, "params": {}}}, ("optimizer", "params", "lr")),
        ({"optimizer": {"type": "AdamW", "lr": 1e-4, "params": {"lr": 1e-4}}}, None),
    ],
)
def test_keys_move_where_they_do_something(changes: dict[str, Any], to: tuple[str, ...] | None) -> None:
    (found,) = lint_config(changes, "KEY009")
    assert [edit.to for edit in found.fix] == ([to] if to else [])
    assert found.help.endswith("and take stage 3") == (changes == {"offload_param": CPU})
    assert ("say the stage there" in found.help) == (
        "stage" not in (changes.get("zero_optimization", {"stage": 2}) or {})
    )


def test_a_key_that_another_name_stands_for() -> None:
    (found,) = lint_config({"load_universal_checkpoint": True}, "KEY")
    assert found.help == "did you mean checkpoint.load_universal?"


def test_the_help_offers_what_the_repair_writes() -> None:
    (found,) = lint_config({"zero_optimization": {"stage": 2, "overlap_com": True}}, "KEY001")
    assert found.help == "did you mean overlap_comm?"
    assert [edit.to for edit in found.fix] == [("zero_optimization", "overlap_comm")]


@pytest.mark.parametrize(
    ("path", "value", "help", "fixed"),
    [
        ("zero_optimization.offload_optimizer.device", "CPU", 'write "cpu"', True),
        ("zero_optimization.reduce_bucket_size", "5e8", "write 500000000", True),
        ("gradient_clipping", "1.0", "write 1.0", True),
        ("gradient_accumulation_steps", "2", "write 2", True),
        ("fp16.loss_scale", "dynamic", "write 0, which means dynamic", False),
        ("communication_data_type", "float16", 'write "fp16"', False),
        ("communication_data_type", "bfp16", 'write "bf16"', False),
        ("wall_clock_breakdown", "false", "write false", False),
        ("zero_optimization.offload_optimizer.device", "gpu", "DeepSpeed's own default is 'none'", False),
        ("zero_optimization.leaf_module.classes", [1], "write names in quotes", False),
    ],
)
def test_what_to_write_instead(path: str, value: Any, help: str, fixed: bool) -> None:
    changes: dict[str, Any] = {}
    section = changes
    *above, name = path.split(".")
    for part in above:
        section = section.setdefault(part, {"stage": 2} if part == "zero_optimization" else {})
    section[name] = value
    (found,) = lint_config(changes, "KEY003")
    assert (found.severity.value, found.help) == ("error", help)
    assert bool(found.fix) == fixed


def test_text_that_deepspeed_cannot_add_up() -> None:
    (found,) = lint_config({"wall_clock_breakdown": "false"}, "KEY003")
    assert found.message.endswith("DeepSpeed stops with a TypeError")


def test_steps_between_steps() -> None:
    (found,) = lint_config({"steps_per_print": 10.5}, "KEY003")
    assert (found.severity.value, found.help) == ("warning", "write 10")


@pytest.mark.parametrize(
    ("name", "since", "help"),
    [
        ("amp", "gone since 0.19.8", "remove it; take fp16, bf16 or torch_autocast instead"),
        ("nebula", "gone since 0.19.7", "remove it; checkpoints are saved by torch.save"),
        ("curriculum_learning", "gone since 0.19.8", "write it as data_efficiency.data_sampling.curriculum_learning"),
        ("eigenvalue", "which it no longer has", "remove it"),
    ],
)
def test_since_when_a_key_is_gone(name: str, since: str, help: str) -> None:
    (found,) = lint_config({name: {}}, "KEY002")
    assert found.message.endswith(since)
    assert found.help == help


@pytest.mark.parametrize(("value", "help"), [(False, "remove it"), (True, "write zero_optimization.offload_optimizer")])
def test_an_old_switch(value: bool, help: str) -> None:
    (found,) = lint_config({"zero_optimization": {"stage": 2, "cpu_offload": value}}, "KEY005")
    assert found.help == help


@pytest.mark.parametrize(
    ("config", "version", "help"),
    [
        ({"tensor_parallel": {"autotp_size": 4}}, "0.14.0", "remove it, or take DeepSpeed 0.16.4"),
        ({"compile": {"deepcompile": True}}, "0.15.4", "remove it, or take DeepSpeed 0.16.6"),
        ({"zero_optimization": {"gradient_cliping": 1.0}}, "0.19.8", "did you mean gradient_clipping?"),
        ({"gradient_cliping": 1.0}, "0.19.8", "did you mean gradient_clipping?"),
    ],
)
def test_what_the_help_names(config: dict[str, Any], version: str, help: str) -> None:
    (found,) = lint_config(config, "KEY001", deepspeed=version)
    assert found.help == help
