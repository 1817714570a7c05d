"""What DeepSpeed will choose: told from facts, and asked of the real DeepSpeed."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dsgen.doctor.accelerator import check_accelerator, predict
from dsgen.doctor.check import State, Subject
from dsgen.doctor.probe import Captured, Machine

from .conftest import CANN, PACKAGES

ALONE = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
CPU = {"device": "cpu", "per_node": 2}


def _without(*names: str) -> dict[str, str]:
    return {name: version for name, version in PACKAGES.items() if name not in names}


def test_a_recipe_is_started_with_its_accelerator(
    capture: Callable[..., Captured], subject: Callable[..., Subject]
) -> None:
    (check,) = check_accelerator(subject(capture(environment={**CANN, "DS_ACCELERATOR": "cpu"})))
    assert (check.state, check.found) == (State.OK, "DeepSpeed chooses npu: launch.sh sets DS_ACCELERATOR=npu")


def test_an_npu_recipe_without_torch_npu_or_cann(
    capture: Callable[..., Captured], subject: Callable[..., Subject]
) -> None:
    (check,) = check_accelerator(subject(capture(packages=_without("torch_npu"))))
    assert (check.state, "torch_npu is not installed" in check.found) == (State.ERROR, True)
    (check,) = check_accelerator(subject(capture(environment={})))
    assert (check.state, "ASCEND_HOME_PATH is not set" in check.found) == (State.ERROR, True)


@pytest.mark.parametrize(
    ("environment", "packages", "kind", "fails", "words"),
    [
        (CANN, PACKAGES, "npu", False, "torch_npu can be imported"),
        ({}, PACKAGES, "npu", True, "`import torch` loads torch_npu by itself"),
        ({"DS_ACCELERATOR": "cpu"}, PACKAGES, "cpu", True, "`import torch` loads torch_npu by itself"),
        (ALONE, PACKAGES, "cpu", False, "DeepSpeed goes on without a word"),
        ({}, {**PACKAGES, "torch": "2.4.0"}, "cpu", False, "DeepSpeed goes on without a word"),
        ({"ASCEND_HOME_PATH": "/a", **ALONE}, PACKAGES, "npu", True, "ASCEND_OPP_PATH is not set"),
        ({}, _without("torch_npu"), "cpu", False, "nothing else was found"),
        ({}, {**_without("torch_npu"), "torch_mlu": "1"}, "mlu", False, "torch_mlu is installed"),
        (CANN, {**PACKAGES, "torch_sdaa": "1"}, "npu", False, "can be imported"),
        ({"DS_ACCELERATOR": "gpu", **ALONE}, PACKAGES, "gpu", True, "DeepSpeed does not know"),
        ({"DS_ACCELERATOR": "npu"}, _without("torch_npu"), "npu", True, "not installed"),
        ({"DS_ACCELERATOR": "cpu", **ALONE}, PACKAGES, "cpu", False, "DS_ACCELERATOR=cpu is set"),
    ],
)
def test_without_a_recipe(
    capture: Callable[..., Captured],
    environment: dict[str, str],
    packages: dict[str, str],
    kind: str,
    fails: bool,
    words: str,
) -> None:
    choice = predict(Subject(probe=capture(environment=environment, packages=packages)))
    assert (choice.kind, choice.fails) == (kind, fails)
    assert words in choice.why


def test_a_silent_fall_to_the_cpu_is_a_warning(capture: Callable[..., Captured]) -> None:
    (check,) = check_accelerator(Subject(probe=capture(environment=ALONE)))
    assert (check.state, "source CANN" in check.remedy) == (State.WARNING, True)


def test_nothing_to_choose_with(capture: Callable[..., Captured]) -> None:
    for probe in (capture(packages=None), capture(environment=None), capture(packages=_without("deepspeed"))):
        (check,) = check_accelerator(Subject(probe=probe))
        assert check.state is State.SKIPPED


def _stand_in(folder: Path, body: str, *, by_itself: bool) -> None:
    """A torch_npu that does `body` when it is imported; `by_itself`: torch imports it, as it does the real one."""
    package, info = folder / "torch_npu", folder / "torch_npu-2.13.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (package / "__init__.py").write_text(body)
    if by_itself:
        (info / "entry_points.txt").write_text("[torch.backends]\ntorch_npu = torch_npu:_autoload\n")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch_npu\nVersion: 2.13.0\n")


@pytest.mark.train
@pytest.mark.parametrize(
    ("body", "environ", "by_itself", "kind", "words"),
    [
        ("raise ImportError('libhccl.so: not there')\n", {}, False, "cpu", ["chooses cpu", "it says backend gloo"]),
        (
            "raise ImportError('libhccl.so: not there')\n",
            {},
            True,
            "npu",
            ["it ends with RuntimeError: Failed to load the backend", "from ImportError: libhccl.so: not there"],
        ),
        (
            "raise Exception('ASCEND_OPP_PATH environment variable is not set.')\n",
            {"ASCEND_HOME_PATH": "/"},
            False,
            "npu",
            ["it ends with Exception: ASCEND_OPP_PATH environment variable is not set."],
        ),
    ],
)
def test_the_real_deepspeed_does_what_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    body: str,
    environ: dict[str, str],
    by_itself: bool,
    kind: str,
    words: list[str],
) -> None:
    _stand_in(tmp_path, body, by_itself=by_itself)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    kept = {name: value for name, value in os.environ.items() if name not in ("DS_ACCELERATOR", "LD_LIBRARY_PATH")}
    (tmp_path / "root" / "runtime").mkdir(parents=True)
    (tmp_path / "root" / "compiler").mkdir()
    probe = Machine(root=tmp_path / "root", environ={**kept, **environ, "PYTHONPATH": str(tmp_path)})
    told = predict(Subject(probe=probe))
    assert (told.kind, told.fails) == (kind, kind == "npu")
    (check,) = check_accelerator(Subject(probe=probe))
    assert check.state is State.WARNING
    assert "source CANN" in check.remedy
    for said in words:
        assert said in check.found


@pytest.mark.train
def test_the_answer_of_deepspeed_wins_over_what_was_expected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plan: Callable[..., object]
) -> None:
    loaded = "deepspeed" in sys.modules
    probe = Machine(environ={**os.environ, "DS_ACCELERATOR": "gpu"})
    (check,) = check_accelerator(Subject(probe=probe))
    assert (check.state, "ValueError: DS_ACCELERATOR must be one of" in check.found) == (State.WARNING, True)
    (check,) = check_accelerator(Subject(probe=probe, plan=plan(hardware=CPU, precision="fp32")))  # type: ignore[arg-type]
    assert (check.state, "asked, it says backend gloo" in check.found) == (State.OK, True)
    assert ("deepspeed" in sys.modules) == loaded
