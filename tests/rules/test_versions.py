from __future__ import annotations

from typing import Any

import pytest

from dsgen.catalog.deepspeed_keys import known_versions, load_keys

from .linted import lint_config, said

OFFLOAD = {"stage": 2, "offload_optimizer": {"device": "cpu"}}


def test_clipping_that_is_not_said() -> None:
    (finding,) = lint_config({"gradient_clipping": None}, "VER")
    assert (finding.code, finding.severity.value, finding.path) == ("VER001", "warning", "gradient_clipping")
    assert "DeepSpeed 0.19.8 clips to a norm of 1.0, versions before 0.19.3 do not" in finding.message
    (trainers,) = lint_config({"gradient_clipping": None}, "VER", framework="transformers")
    assert trainers.severity.value == "info"
    assert trainers.help.endswith("or auto")


@pytest.mark.parametrize("value", [0, 1.0, "auto", None])
def test_clipping_that_is_said(value: Any) -> None:
    config = {"gradient_clipping": value} if value is not None else {}
    assert lint_config(config, "VER", framework="transformers") == []


def test_clipping_in_an_older_version() -> None:
    (finding, *_) = lint_config({"gradient_clipping": None}, "VER001", deepspeed="0.19.2")
    assert "DeepSpeed 0.19.2 does not clip, versions from 0.19.3 on clip to a norm of 1.0" in finding.message


@pytest.mark.parametrize(
    ("zero", "paths"),
    [
        (OFFLOAD, ["zero_optimization.offload_optimizer"]),
        ({"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": False}}, []),
        ({"stage": 2, "offload_optimizer": {"device": "none"}}, []),
        ({"stage": 0, "offload_optimizer": {"device": "cpu"}}, []),
        (
            {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}},
            ["zero_optimization.offload_param", "zero_optimization.offload_optimizer"],
        ),
    ],
)
def test_pinning(zero: dict[str, Any], paths: list[str]) -> None:
    found = lint_config({"zero_optimization": zero}, "VER")
    assert sorted(said(found)) == sorted(("VER002", "info", path) for path in paths)
    assert all(
        "DeepSpeed 0.19.8 locks the host memory, versions before 0.19.5 do not" in each.message for each in found
    )


def test_pinning_in_an_older_version() -> None:
    (finding,) = lint_config({"zero_optimization": OFFLOAD}, "VER002", deepspeed="0.19.4")
    assert "DeepSpeed 0.19.4 does not lock the host memory, versions from 0.19.5 on do" in finding.message


def test_the_newest_version_has_no_other_defaults_to_come() -> None:
    assert lint_config({}, "VER") == []


def test_other_defaults_of_an_older_version() -> None:
    (overflow,) = lint_config({}, "VER003", deepspeed="0.19.2")
    assert (
        "bf16.check_grad_overflow is not said: it is false in DeepSpeed 0.19.2, and true in 0.19.8" in overflow.message
    )
    assert lint_config({"bf16": {"enabled": True, "check_grad_overflow": True}}, "VER003", deepspeed="0.19.2") == []
    assert lint_config({"bf16": None, "fp16": {"enabled": True}}, "VER003", deepspeed="0.19.2") == []


def test_printing_was_usual_once() -> None:
    found = lint_config({}, "VER003", deepspeed="0.14.0")
    assert any("steps_per_print is not said: it is 10 in DeepSpeed 0.14.0" in each.message for each in found)
    assert not any(
        "steps_per_print" in each.message
        for each in lint_config({}, "VER003", deepspeed="0.14.0", framework="transformers")
    )


@pytest.mark.parametrize(
    ("path", "changed", "before", "since"),
    [
        ("gradient_clipping", (0, 19, 3), 0.0, 1.0),
        ("bf16.check_grad_overflow", (0, 19, 3), False, True),
        ("zero_optimization.offload_optimizer.pin_memory", (0, 19, 5), False, True),
        ("zero_optimization.offload_param.pin_memory", (0, 19, 5), False, True),
        ("steps_per_print", (0, 15, 2), 10, None),
    ],
)
def test_the_versions_that_are_named_are_those_of_the_changes(
    path: str, changed: tuple[int, ...], before: Any, since: Any
) -> None:
    for version in known_versions():
        key = load_keys(version).get(path)
        if key is not None and key.has_default:
            expected = before if tuple(map(int, version.split("."))) < changed else since
            assert key.default == expected, version
