from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from dsgen.findings import FindingsError, Severity
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.schema import Recipe
from dsgen.recipe.type_findings import models_in

from ..conftest import BASE
from .conftest import Check

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
GOOD = """\
schema: 1
name: job
model: llama-2-7b
precision: bf16
batch: {sequence_length: 2048, micro: 1, global: 64}
length: {steps: 100}
zero: {stage: 2}
optimizer: {type: AdamW, lr: 2e-5}
hardware: {device: ascend-910b3-64g, per_node: 8}
data: {files: "data/*.jsonl"}
"""


def changed(field: str, line: str) -> str:
    """GOOD with the line of a field replaced; a field that it does not have is added at the end."""
    lines = GOOD.splitlines()
    if f"{field}: " not in GOOD:
        return f"{GOOD}{line}\n"
    return "\n".join(line if each.startswith(f"{field}: ") else each for each in lines) + "\n"


def test_a_good_recipe(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text(GOOD)
    checked = check_recipe(load_recipe(path))
    assert checked.findings == ()
    assert checked.architecture.name == "llama-2-7b"
    assert checked.recipe.batch.global_ == 64
    assert [each.name for each in checked.inputs] == ["r.yaml"]


def test_everything_wrong_is_said_at_once(check: Check) -> None:
    found = check(
        """\
schema: 2
name: a b
modle: llama-2-7b
precision: {type: bf17}
batch: {sequence_length: 2048, micro: 3, global: 64}
length: {steps: ten}
zero: {stage: 1, offload: {parameters: cpu}, overlap_com: true}
optimizer: {type: AdamW}
hardware: {device: ascend-910b3-64g, per_node: 8}
data: {files: data.csv}
schedule: {type: WarmupLR, warmup_num_steps: 0}
"""
    )
    assert [(each.code, each.path, str(each.position)) for each in found] == [
        ("REC003", "model", "r.yaml:1:1"),
        ("REC002", "schema", "r.yaml:1:9"),
        ("REC002", "name", "r.yaml:2:7"),
        ("REC001", "modle", "r.yaml:3:1"),
        ("REC002", "precision.type", "r.yaml:4:19"),
        ("BAT003", "batch.global", "r.yaml:5:50"),
        ("REC002", "length.steps", "r.yaml:6:17"),
        ("OFF001", "zero.offload.parameters", "r.yaml:7:28"),
        ("KEY001", "zero.overlap_com", "r.yaml:7:46"),
        ("REC003", "optimizer.lr", "r.yaml:8:1"),
        ("DAT002", "data.files[0]", "r.yaml:10:15"),
        ("SCH002", "schedule.warmup_num_steps", "r.yaml:11:46"),
    ]


@pytest.mark.parametrize(
    ("field", "line", "code", "message", "help"),
    [
        ("zero", "zeor: {stage: 2}", "REC001", "unknown field zeor: it would do nothing", "did you mean zero?"),
        ("batch", "batch: {sequence_length: 1, micro: 1, globl: 64}", "REC001",
         "unknown field batch.globl: it would do nothing", "did you mean global?"),
        ("extend", "extend: x", "REC001", "unknown field extend: it would do nothing", "did you mean extends?"),
        ("logging", "logging: {xyzzy: 1}", "REC001", "unknown field logging.xyzzy: it would do nothing",
         "known here: every, memory_snapshot"),
        ("zero", "zero: {}", "REC003", "zero.stage is missing", "ZeRO stage."),
        ("zero", "zero: 2", "REC002", "zero: expected a mapping, got 2",
         "ZeRO stage and offload; every other key of DeepSpeed's zero_optimization under its own name. "
         "Its keys: stage, offload."),
        ("schema", "schema: true", "REC002", "schema: expected 1, got true", "Version of the recipe format: 1."),
        ("zero", "zero: {stage: true}", "REC002", "zero.stage: expected 0, 1, 2 or 3, got true", "ZeRO stage."),
        ("loss", "loss: 3", "REC002", "loss: expected 'plain', 'chunked' or a mapping, got 3",
         "plain, or chunked so that the fp32 logits of all tokens never exist at once. Its keys: chunk_tokens."),
        ("loss", "loss: {chunk_tokens: 0}", "REC002", "loss.chunk_tokens: expected at least 1, got 0",
         "Take the loss over this many tokens at a time."),
        ("adapter", "adapter: {rank: 8, targets: q_proj}", "REC002",
         "adapter.targets: expected 'all-linear' or a list, got 'q_proj'",
         "Linear layers that get an adapter: names such as q_proj, or `all-linear`."),
        ("adapter", "adapter: {rank: 8, targets: [q_proj, 3]}", "REC002",
         "adapter.targets[1]: expected text, got 3",
         "Linear layers that get an adapter: names such as q_proj, or `all-linear`."),
        ("adapter", "adapter: {rank: 8, targets: []}", "REC002",
         "adapter.targets: expected 'all-linear' or at least one item, got an empty list",
         "Linear layers that get an adapter: names such as q_proj, or `all-linear`."),
        ("adapter", "adapter: {rank: 8, dropout: 1}", "REC002", "adapter.dropout: expected less than 1, got 1",
         "Dropout on the adapter's input."),
        ("precision", "precision: {type: fp16, loss_scale: '128'}", "REC002",
         "precision.loss_scale: expected 'dynamic' or a number, got '128'",
         "fp16 only: `dynamic`, or a fixed scale above 0."),
        ("precision", "precision: 半精度", "REC002", "precision: expected 'fp32', 'fp16' or 'bf16', got '半精度'",
         "fp32, fp16 or bf16, or a mapping with `type`."),
        ("precision", "precision: ｂｆ１６", "REC002",
         "precision: expected 'fp32', 'fp16' or 'bf16', got 'ｂｆ１６'",
         "fp32, fp16 or bf16, or a mapping with `type`."),
        ("environment", "environment: {A: [1]}", "REC002",
         "environment.A: expected text, true, false or a number, got a list",
         "Environment variables of the job; they win over what dsgen derives."),
        ("model", "model: 7", "REC002", "model: expected text or a mapping, got 7",
         "A preset (llama-2-13b), a plain size (13b), a path to a Hugging Face config.json or model folder "
         "(it starts with ./, ../, / or ~, or ends in .json), or the fields of a config.json."),
        ("length", "length: {tokens: 2GB}", "REC002",
         "length.tokens: unit 'GB' is unknown: write k, M, B (or G), T, or no unit", "Tokens seen: 2B."),
        ("seed", "seed: 4294967296", "REC002", "seed: expected less than 4294967296, got 4294967296",
         "Seed of weights and data order."),
        ("length", "length: {epochs: 1e300}", "REC002", "length.epochs: expected at most 100000, got 1e+300",
         "Passes over the data."),
        ("tokenizer", "tokenizer: ' '", "REC002", "tokenizer: expected text that is not empty, got ' '",
         "`bytes`, a path to a tokenizer folder or file, or a hub name."),
        ("hardware", "hardware: {device: ascend-910b3, nodes: 1e15}", "REC002",
         "hardware.nodes: expected at most 10000, got 1000000000000000.0",
         "Nodes; the number of `hosts` when those are given."),
        ("hardware", "hardware: {device: ascend-910b9}", "REC006", "unknown device 'ascend-910b9'", "did you mean "),
        ("batch", "batch: {sequence_length: 2048, micro: 1, global_: 64}", "REC001",
         "unknown field batch.global_: it would do nothing", "did you mean global?"),
        ("deepspeed", "deepspeed: []", "REC002", "deepspeed: expected a mapping, got an empty list",
         "Raw keys of ds_config.json, merged last and checked all the same."),
        ("data", "data: {files: x.txt, shuffle: 'yes'}", "REC002", "data.shuffle: expected true or false, got 'yes'",
         "Shuffle by the seed in every epoch."),
    ],
)  # fmt: skip
def test_one_message_for_one_place(field: str, line: str, code: str, message: str, help: str, check: Check) -> None:
    found = [each for each in check(changed(field, line)) if (each.code, each.path) != ("REC003", field)]
    assert [(each.code, each.message) for each in found] == [(code, message)]
    assert found[0].help == help if help != "did you mean " else found[0].help.startswith(help)
    assert found[0].severity is Severity.ERROR


@pytest.mark.parametrize("name", [".", "..", "a/b", "-x", "a b", '"a\\nb"', "''", "名字", "x" * 101, "a$(b)"])
def test_names_make_folders(name: str, check: Check) -> None:
    (found,) = check(changed("name", f"name: {name}"))
    assert "expected letters, digits, dot, dash and underscore, starting with a letter or digit" in found.message


@pytest.mark.parametrize("name", ["a.", "1", "v1.2-x_y", "x" * 100])
def test_good_names(name: str, check: Check) -> None:
    assert check(changed("name", f"name: '{name}'")) == []


# Only with an entrypoint may `data` be left out.
OPTIONAL = [
    info.alias or name for name, info in Recipe.model_fields.items() if not info.is_required() and name != "data"
]
REQUIRED = [info.alias or name for name, info in Recipe.model_fields.items() if info.is_required()]


@pytest.mark.parametrize("field", OPTIONAL)
def test_an_optional_field_without_a_value_is_left_out(field: str, check: Check) -> None:
    assert check(changed(field, f"{field}:")) == []
    assert check(GOOD, f"{field}=null") == []


@pytest.mark.parametrize("field", REQUIRED)
def test_a_required_field_without_a_value_is_an_error_there(field: str, check: Check) -> None:
    (found,) = check(changed(field, f"{field}:"))
    assert (found.code, found.path) == ("REC002", field)
    assert found.message.endswith(", got nothing")
    assert found.position.line == GOOD.splitlines().index(next(x for x in GOOD.splitlines() if x.startswith(field))) + 1


@pytest.mark.parametrize("section", ["zero: {stage: 2, offload: null}", "zero: {stage: 2, offload: {optimizer: }}"])
def test_nulls_inside_sections(section: str, check: Check) -> None:
    assert check(changed("zero", section)) == []


@pytest.mark.parametrize(
    ("field", "line", "others"),
    [
        ("batch", "batch: 3", {"OFF001", "PRE003"}),
        ("batch", "batch: {sequence_length: x, micro: 3, global: 64}", {"BAT003", "OFF001", "PRE003"}),
        ("hardware", "hardware: {device: [], per_node: 7}", {"BAT003", "OFF001", "PRE003"}),
        ("optimizer", "optimizer: {type: AdamW, lr: fast, weigth_decay: 1}", {"OPT002", "OFF001", "PRE003"}),
    ],
)
def test_a_wrong_type_does_not_hide_what_rules_see_elsewhere(
    field: str, line: str, others: set[str], check: Check
) -> None:
    text = changed(field, line).replace("stage: 2}", "stage: 2, offload: {parameters: cpu}}")
    text = text.replace("precision: bf16", "precision: {type: bf16, hysteresis: 2}")
    assert {each.code for each in check(text)} == {"REC002", *others}


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("hardware", "hardware: {device: ascend-910b3, nodes: two, hosts: [a, b, c]}"),
        ("hardware", "hardware: {device: ascend-910b3, per_node: three}"),
        ("hardware", "hardware: {device: ascend-910b3, hosts: a}"),
        ("parallel", "parallel: {tensor: x}"),
        ("batch", "batch: {sequence_length: 8, micro: x}"),
        ("length", "length: {steps: x}\nschedule: {type: WarmupCosineLR}"),
        ("length", "length: {steps: x, epochs: 2}"),
        ("checkpoint", "checkpoint: {every_steps: x, keep: 3}"),
        ("data", "data: {files: [x.txt, 3], builtin: python-topics}"),
        ("zero", "zero: {stage: x, stage3_max_live_parameters: 5, offload: {parameters: cpu}}"),
    ],
)
def test_a_wrong_value_is_no_default(field: str, line: str, check: Check) -> None:
    """What could not be read is unknown: rules do not go on with what it would be if it were left out."""
    text = changed(field, line)
    if field in ("hardware", "parallel"):
        text = text.replace("global: 64", "global: 3")  # wrong on one node of 8
    assert [each.code for each in check(text)] == ["REC002"]


def test_a_wrong_key_deep_inside_leaves_the_rest_of_its_section(check: Check) -> None:
    found = check(changed("zero", "zero: {stage: 2, offload: {optimizer: {device: cpu, ratio: 0.5, rato: 1}}}"))
    assert {(each.code, each.path) for each in found} == {
        ("REC001", "zero.offload.optimizer.rato"),
        ("OFF007", "zero.offload.optimizer.ratio"),
    }
    found = check(changed("zero", "zero: {stage: 2, offload: {optimizer: {path: /x}}}"))
    assert [(each.code, each.path) for each in found] == [("REC003", "zero.offload.optimizer.device")]


@pytest.mark.parametrize("name", ["cls", "self", "_fields_set", "model_extra", "model_config", "__class__", "copy"])
def test_names_of_the_machinery_are_names_like_any_other(name: str, check: Check) -> None:
    found = check(changed("zero", f"zero: {{stage: x, {name}: 1}}"))
    assert {(each.code, each.path) for each in found} == {("REC002", "zero.stage"), ("KEY001", f"zero.{name}")}
    (found_right,) = check(changed("zero", f"zero: {{stage: 2, {name}: 1}}"))
    assert (found_right.code, found_right.path) == ("KEY001", f"zero.{name}")
    (unknown,) = check(changed("memory", f"memory: {{{name}: 1}}"))
    assert (unknown.code, unknown.path) == ("REC001", f"memory.{name}")


def test_warnings_come_after_errors(check: Check) -> None:
    text = changed("batch", "batch: {sequence_length: 5000, micro: 3, global: 64}")
    assert [each.code for each in check(text)] == ["BAT003", "MOD001"]


def test_findings_of_a_base_stand_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("base.yaml").write_text(changed("zero", "zero: {stage: 2, overlap_com: true}"))
    Path("r.yaml").write_text("extends: base.yaml\nzero: {stage: 0}\nseed: x\n")
    with pytest.raises(FindingsError) as caught:
        check_recipe(load_recipe(Path("r.yaml"), ["batch.micro=3"]))
    assert [(each.code, str(each.position)) for each in caught.value.findings] == [
        ("BAT003", "base.yaml:5:50"),
        ("KEY001", "base.yaml:7:18"),
        ("REC002", "r.yaml:3:7"),
    ]
    assert set(caught.value.sources) == {"base.yaml", "r.yaml", "--set batch.micro=3"}
    assert "base.yaml:7:18: KEY001" in str(caught.value)


def test_line_ends_and_tabs(check: Check) -> None:
    assert check(GOOD.replace("\n", "\r\n")) == []
    (found,) = check(GOOD.replace("\n", "\r\n") + "foo: 1\r\n")
    assert (found.code, found.position.line) == ("REC001", 11)
    assert check(GOOD.replace("name: job", "name:\tjob")) == []


WORDS = re.compile(
    r"Input should|valid (integer|string|dict|list|number|boolean)|NoneType|\bNone\b|pydantic|dict\b|\bstr\b"
)
SAMPLES: list[Any] = [None, True, -1, 1.5, float("nan"), 10**30, "", "x" * 500, [], [3], {"x": 1}]


def places(model: type[BaseModel], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, info in model.model_fields.items():
        inner = (*path, info.alias or name)
        yield inner
        for section in models_in(info.annotation):
            yield from places(section, inner)


@pytest.mark.parametrize("path", list(places(Recipe)), ids=".".join)
def test_no_word_of_the_machinery_reaches_a_message(path: tuple[str, ...], check: Check) -> None:
    """Every field with a value of every type: findings with a place and in the recipe's words, or none."""
    for sample in SAMPLES:
        content = copy.deepcopy(BASE)
        at = content
        for part in path[:-1]:
            at[part] = at[part] if isinstance(at.get(part), dict) else {}
            at = at[part]
        at[path[-1]] = sample
        for each in check(yaml.dump(content, Dumper=DUMPER)):
            assert not WORDS.search(each.message), each
            assert each.position.file == "r.yaml" and each.position.line >= 1
            assert each.path
