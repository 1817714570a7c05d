"""Lint against the real DeepSpeed: what it calls an error is one there, and what it calls clean trains as written.

The cases stand in truth/*.yaml, one small config each: the base config below with some keys changed (`with`), after
some are taken away (`without`), or a whole `text`. Where a case has `errors`, lint has to find errors at exactly these
paths; without, none. Where it has `warns`, lint has to warn at exactly these paths; without, and without `errors`, it
is to say nothing but infos. What DeepSpeed does with what is written there is one of

    refused: TEXT         it refuses, or crashes in the first two steps, and says TEXT
    effect: none          it trains, and the config without the key gives the same parsed config and the same training
    parsed_only: REASON   the same, but for the key's own value in the parsed config, which nothing reads
    acts_as: CHANGES      it trains as with the config with these changes
    shows: FACTS          it trains, and the engine works with these values, which nobody can have meant

With the third and the fourth, `holds` names the settings of the engine that only repeat the value. A case that says
none of these is as good as it looks: DeepSpeed trains two steps with every value that was written, except for those in
`read_as`, which it reads so.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsgen.catalog.deepspeed_keys import load_keys
from dsgen.documents.positions import undotted
from dsgen.dsconfig.job import job_named
from dsgen.findings import Severity
from dsgen.lint.lint import Linted, lint_bytes
from dsgen.lint.options import Options
from dsgen.rules.view import keys_of

from .conftest import Engine, Report
from .parsed import FACTS, MISSING, NOT_KEPT, kept, places, same

pytestmark = pytest.mark.train

KEYS = load_keys("0.19.8")
BASE: dict[str, Any] = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 2,
    "bf16": {"enabled": True},
    "gradient_clipping": 1.0,
    # torch's Adam: DeepSpeed's own would have to be built.
    "optimizer": {"type": "AdamW", "params": {"lr": 0.001, "torch_adam": True}},
    "zero_optimization": {"stage": 2},
}
TRUTHS = {"refused", "effect", "parsed_only", "acts_as", "shows"}

Case = dict[str, Any]


def cases() -> dict[str, Case]:
    found = {}
    for file in sorted(Path(__file__).with_name("truth").glob("*.yaml")):
        for case in yaml.safe_load(file.read_text(encoding="utf-8")):
            name = f"{file.stem}-{case['name']}"
            assert name not in found, name
            found[name] = case
    return found


CASES = cases()
FAULTY = {name: case for name, case in CASES.items() if "errors" in case}
SUSPECT = {name: case for name, case in CASES.items() if name not in FAULTY and TRUTHS & case.keys()}
SOUND = {name: case for name, case in CASES.items() if name not in FAULTY and name not in SUSPECT}


def merged(config: Any, changes: Any) -> Any:
    if isinstance(config, dict) and isinstance(changes, dict):
        return {**config, **{key: merged(config.get(key), value) for key, value in changes.items()}}
    return changes


def without(config: dict[str, Any], path: str) -> dict[str, Any]:
    rest = copy.deepcopy(config)
    at = rest
    *sections, key = undotted(path)
    for section in sections:
        at = at[section]
    del at[key]
    return rest


def text_of(case: Case) -> str:
    if "text" in case:
        text: str = case["text"]
        return text
    config = BASE
    for path in case.get("without", ()):
        config = without(config, path)
    return json.dumps(merged(config, case.get("with", {})))


def lint(case: Case) -> Linted:
    job = job_named(
        framework="native",
        world_size=2,
        client_optimizer=case.get("client_optimizer"),
        device=case.get("device"),
    )
    linted = lint_bytes(text_of(case).encode(), "ds_config.json", Options(job=job))
    assert linted is not None
    return linted


def assert_finds(case: Case, linted: Linted) -> None:
    """Lint finds what the case says; a case of errors need not say what warnings stand beside them."""
    found = {severity: sorted({f.path for f in linted.findings if f.severity is severity}) for severity in Severity}
    expected = {Severity.ERROR: sorted(case.get("errors", ()))}
    if "warns" in case or "errors" not in case:
        expected[Severity.WARNING] = sorted(case.get("warns", ()))
    said = [f"{f.code} {f.severity.value} {f.path}" for f in linted.findings]
    assert {severity: found[severity] for severity in expected} == expected, said


def ask(engine: Engine, case: Case, text: str) -> Report:
    """DeepSpeed's report on a config, in the surroundings of a case."""
    client = case.get("client_optimizer")
    # `none` is lint's word for a script that brings no optimizer.
    return engine.run(text, None if client == "none" else client)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from leaves(inner, f"{path}.{key}" if path else key)
    else:
        yield path, value


def differences(one: Any, other: Any) -> dict[str, tuple[Any, Any]]:
    left, right = dict(leaves(one)), dict(leaves(other))
    return {
        path: (left.get(path, MISSING), right.get(path, MISSING))
        for path in left.keys() | right.keys()
        if left.get(path, MISSING) != right.get(path, MISSING)
    }


def trained(report: Report) -> Report:
    assert report["state"] == "trained", report
    return report


def assert_same_but(path: str, case: Case, report: Report, other: Report) -> None:
    """The same training, and the same parsed config but for the value of the key at `path`."""
    own = places(KEYS, path)
    assert own, f"{path} has no place in the parsed config"
    parsed = {
        place: values
        for place, values in differences(trained(report)["parsed"], trained(other)["parsed"]).items()
        if not any(place == each or place.startswith(f"{each}.") for each in own)
    }
    assert parsed == {}
    facts = differences(report["facts"], other["facts"])
    assert facts.keys() == set(case.get("holds", ())), facts


def assert_wrong(path: str, case: Case, config: Any, engine: Engine) -> None:
    """DeepSpeed does with the key at `path` what the case says; AssertionError otherwise."""
    report = ask(engine, case, text_of(case))
    if "refused" in case:
        assert case["refused"]
        assert report["state"] == "refused", report
        assert case["refused"] in report["error"]
    elif "shows" in case:
        facts = trained(report)["facts"]
        assert {name: facts[name] for name in case["shows"]} == case["shows"]
    elif "acts_as" in case:
        other = ask(engine, case, json.dumps(merged(config, case["acts_as"])))
        assert_same_but(path, case, report, other)
    else:
        other = ask(engine, case, json.dumps(without(config, path)))
        if "parsed_only" in case:
            assert_same_but(path, case, report, other)
        else:
            assert case["effect"] == "none"
            assert differences(trained(report), trained(other)) == {}


@pytest.mark.parametrize("name", FAULTY)
def test_an_error_of_lint_is_one_of_deepspeed(name: str, engine: Engine) -> None:
    case = FAULTY[name]
    linted = lint(case)
    assert_finds(case, linted)
    config = linted.document.value if linted.document is not None else None
    for path in case["errors"]:
        assert_wrong(path, case, config, engine)


@pytest.mark.parametrize("name", SUSPECT)
def test_a_warning_of_lint_is_deserved(name: str, engine: Engine) -> None:
    case = SUSPECT[name]
    linted = lint(case)
    assert_finds(case, linted)
    assert linted.document is not None
    for path in case["warns"]:
        assert_wrong(path, case, linted.document.value, engine)


@pytest.mark.parametrize("name", SOUND)
def test_what_lint_calls_clean_trains_as_written(name: str, engine: Engine) -> None:
    case = SOUND[name]
    linted = lint(case)
    assert_finds(case, linted)
    report = trained(ask(engine, case, text_of(case)))
    facts = report["facts"]
    assert (facts["steps"], facts["skipped_steps"], facts["finite"]) == (2, 0, True)
    assert linted.document is not None
    written = {".".join(map(str, path)): value for path, value in keys_of(linted.document.value)}
    read_as = case.get("read_as", {})
    assert read_as.keys() <= written.keys()
    wrong = {}
    for path, value in written.items():
        key = KEYS.get(path)
        if key is None or isinstance(value, dict):
            continue
        expected = read_as.get(path, value)
        read = kept(KEYS, path, report)
        if not same(expected, read) and not (read is MISSING and key.path in NOT_KEPT):
            wrong[path] = (expected, read)
        if key.path in FACTS and not same(expected, facts[FACTS[key.path]]):
            wrong[path] = (expected, facts[FACTS[key.path]])
    assert wrong == {}


HAPPY = {
    "clipping": ("gradient_clipping", {"with": {"gradient_clipping": 0.01}}),
    "stage": ("zero_optimization.stage", {"with": {"zero_optimization": {"stage": 1}}}),
    "bucket": ("zero_optimization.reduce_bucket_size", {"with": {"zero_optimization": {"reduce_bucket_size": 700}}}),
    "robin": (
        "zero_optimization.round_robin_gradients",
        {"with": {"zero_optimization": {"round_robin_gradients": True}}},
    ),
    "decay": ("optimizer.params.weight_decay", {"with": {"optimizer": {"params": {"weight_decay": 0.5}}}}),
    "schedule": ("scheduler", {"with": {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}}}),
    "accumulation": ("data_types.grad_accum_dtype", {"with": {"data_types": {"grad_accum_dtype": "fp32"}}}),
    "csv": ("csv_monitor", {"with": {"csv_monitor": {"enabled": True, "output_path": "csv"}}}),
}
"""Keys that DeepSpeed does take: path -> the case that has it."""


@pytest.mark.parametrize(
    "truth", [{"refused": "Error"}, {"effect": "none"}, {"parsed_only": "nothing reads it"}], ids=str
)
@pytest.mark.parametrize("name", HAPPY)
def test_a_false_error_would_be_seen(name: str, truth: Case, engine: Engine) -> None:
    """The judgement above fails for a key that DeepSpeed takes, whatever a case says of it."""
    path, case = HAPPY[name]
    config = json.loads(text_of(case))
    with pytest.raises(AssertionError):
        assert_wrong(path, {**case, **truth}, config, engine)


def test_cases_are_told_apart() -> None:
    fields = {
        "name",
        "with",
        "without",
        "text",
        "client_optimizer",
        "device",
        "errors",
        "warns",
        "holds",
        "read_as",
        *TRUTHS,
    }
    for name, case in CASES.items():
        assert case.keys() <= fields, name
        assert len(TRUTHS & case.keys()) == (1 if name not in SOUND else 0), name
        assert "warns" in case or name not in SUSPECT, name
    assert len(FAULTY) >= 70
    assert len(SOUND) >= 40
