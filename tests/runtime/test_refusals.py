"""What a run refuses to do, and what it says then."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from dsgen.runtime.accelerator import check_accelerator
from dsgen.runtime.arguments import Ranks as RankNumbers
from dsgen.runtime.arguments import parse_arguments, read_ranks
from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.session import start
from dsgen.runtime.settings import Checkpoint
from tests.runtime.conftest import Ranks, Result, ds_config, replace, settings, write_job

LAUNCHED = {
    "RANK": "1",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
}


def test_ranks_of_torchrun_and_deepspeed() -> None:
    expected = RankNumbers(rank=1, world_size=4, local_rank=1, local_world_size=2, address="10.0.0.1", port=29500)
    assert read_ranks(LAUNCHED) == expected
    deepspeed = {**LAUNCHED, "LOCAL_SIZE": "2"}
    del deepspeed["LOCAL_WORLD_SIZE"]
    assert read_ranks(deepspeed) == expected


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"])
def test_missing_variable_is_named(name: str) -> None:
    environment = {key: value for key, value in LAUNCHED.items() if key != name}
    with pytest.raises(RuntimeProblem, match=rf"not part of a job: {name} not set"):
        read_ranks(environment)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"LOCAL_RANK": "0,1,2,3"}, "LOCAL_RANK='0,1,2,3' .* not a number"),
        ({"MASTER_PORT": "x"}, "MASTER_PORT='x'"),
        ({"RANK": "4"}, "contradict each other: RANK=4 of WORLD_SIZE=4"),
        ({"LOCAL_RANK": "2"}, "contradict each other"),
    ],
)
def test_wrong_variable(changes: dict[str, str], message: str) -> None:
    with pytest.raises(RuntimeProblem, match=message):
        read_ranks({**LAUNCHED, **changes})


def test_arguments(tmp_path: Path) -> None:
    environment = {"DSGEN_RUN_DIR": str(tmp_path / "a"), "DSGEN_BASE_DIR": str(tmp_path / "b")}
    plain = parse_arguments(tmp_path, [], {})
    assert (plain.run_dir, plain.base_dir, plain.resume, plain.redirect) == (tmp_path, tmp_path, None, False)
    named = parse_arguments(tmp_path, ["--local_rank=3", "--resume"], environment)
    assert (named.run_dir, named.base_dir) == (tmp_path / "a", tmp_path / "b")
    assert (named.resume, named.redirect, environment["LOCAL_RANK"]) == ("auto", True, "3")
    given = parse_arguments(tmp_path, ["--run-dir", "/x", "--base-dir", "/y", "--resume", "/z"], environment)
    assert (str(given.run_dir), str(given.base_dir), given.resume) == ("/x", "/y", "/z")


class FakeAccelerator:
    def __init__(self, name: str, backend: str, devices: int = 8) -> None:
        self._name, self._backend, self._devices = name, backend, devices

    def device_name(self) -> str:
        return self._name

    def communication_backend_name(self) -> str:
        return self._backend

    def is_available(self) -> bool:
        return self._devices > 0

    def device_count(self) -> int:
        return self._devices


NODE = RankNumbers(rank=0, world_size=8, local_rank=0, local_world_size=8, address="a", port=1)


@pytest.mark.parametrize(
    ("wanted", "backend", "found", "message", "help"),
    [
        ("npu", "hccl", FakeAccelerator("cpu", "gloo"), "DeepSpeed chose cpu; .*CANN's set_env.sh", "set_env.sh"),
        ("npu", "hccl", FakeAccelerator("cuda", "nccl"), "DeepSpeed chose cuda", "DS_ACCELERATOR=npu"),
        ("cpu", "gloo", FakeAccelerator("npu", "hccl"), "DeepSpeed chose npu", "DS_ACCELERATOR=cpu"),
        ("cpu", "gloo", FakeAccelerator("cpu", "ccl"), "would use ccl: oneccl", "uninstall"),
        (
            "npu",
            "hccl",
            FakeAccelerator("npu", "hccl", 4),
            r"runs 8 ranks but shows 4 npu .*ASCEND_RT_VISIBLE",
            "devices",
        ),
        ("cuda", "nccl", FakeAccelerator("cuda", "nccl", 0), r"shows 0 cuda device.*CUDA_VISIBLE_DEVICES", "devices"),
    ],
)
def test_wrong_accelerator(wanted: Any, backend: Any, found: FakeAccelerator, message: str, help: str) -> None:
    job = replace(settings(), accelerator=wanted, backend=backend)
    with pytest.raises(RuntimeProblem, match=message) as caught:
        check_accelerator(found, job, NODE)
    assert help in caught.value.help


@pytest.mark.parametrize(("accelerator", "backend"), [("npu", "hccl"), ("cuda", "nccl"), ("cpu", "gloo")])
def test_right_accelerator(accelerator: Any, backend: Any) -> None:
    check_accelerator(
        FakeAccelerator(accelerator, backend), replace(settings(), accelerator=accelerator, backend=backend), NODE
    )


@pytest.mark.train
@pytest.mark.parametrize(
    ("accelerator", "variable", "message"),
    [
        ("npu", "cpu", "DS_ACCELERATOR=cpu is set"),
        ("npu", None, "torch_npu cannot be imported"),
        ("npu", "npu", "torch_npu cannot be imported"),
    ],
)
def test_never_trains_an_npu_recipe_elsewhere(
    environment: dict[str, str], tmp_path: Path, accelerator: Any, variable: str | None, message: str
) -> None:
    """A fresh process, as the launcher starts it: the refusal comes in seconds, before any process group."""
    job = replace(settings(), accelerator=accelerator, backend="hccl", world_size=1)
    script = write_job(tmp_path, job, ds_config(job, 2))
    alone = {**environment, **LAUNCHED, "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    del alone["DS_ACCELERATOR"]
    if variable is not None:
        alone["DS_ACCELERATOR"] = variable
    begun = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**alone, "DSGEN_RUN_DIR": str(tmp_path / "run")},
        capture_output=True,
        text=True,
    )
    assert time.monotonic() - begun < 10
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    error = json.loads((tmp_path / "run" / "errors" / "rank-0.json").read_text())
    assert message in error["message"]
    assert error["type"] == "RuntimeProblem"
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


@pytest.mark.train
def test_started_by_hand(environment: dict[str, str], tmp_path: Path) -> None:
    job = settings()
    script = write_job(tmp_path, job, ds_config(job, 2))
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert "this process is not part of a job" in done.stderr
    assert "torchrun" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.train
def test_refusals_of_a_job(ranks: Ranks, tmp_path: Path) -> None:
    """Each ends all ranks with exit code 2, one message on the console, and no model built."""
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "bad.jsonl").write_text('{"txt": "a"}\n{"txt": "b"}\n')
    (tmp_path / "short.txt").write_text("short\n")
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "a.parquet").write_bytes(b"PAR1" + bytes(1000))
    # Opens well and gives EIO when it is read.
    (tmp_path / "dying.jsonl").symlink_to("/proc/self/mem")
    (tmp_path / "cut.json").write_text('{"model": {"type": "BPE", "vo')
    base: dict[str, str | None] = {"DSGEN_BASE_DIR": str(tmp_path)}
    small = {**settings().model.config, "vocab_size": 100}
    cases: list[tuple[str, Any, str, dict[str, str | None]]] = [
        ("world", settings(world_size=4), "recipe is for 4 ranks, but the launcher started 2", base),
        ("empty", settings(data={"builtin": None, "files": ("empty.txt",)}), "holds no text", base),
        ("none", settings(data={"builtin": None, "files": ("*.parquet",)}), "no data file matches", base),
        ("bad", settings(data={"builtin": None, "files": ("bad.jsonl",)}), "bad.jsonl:1: no field 'text'", base),
        ("short", settings(data={"builtin": None, "files": ("short.txt",)}), "less than one sequence of 32", base),
        ("small", settings(model={"config": small}), "tokenizer bytes has 256 ids .* vocabulary has 100", base),
        ("lost", settings(data={"tokenizer": "./nowhere"}), "there is no tokenizer at", base),
        (
            "cut",
            settings(data={"builtin": None, "files": ("cut/a.parquet",)}),
            "cut/a.parquet is no readable parquet",
            base,
        ),
        (
            "dying",
            settings(data={"builtin": None, "files": ("dying.jsonl",)}),
            "dying.jsonl cannot be read: Input",
            base,
        ),
        ("json", settings(data={"tokenizer": "cut.json"}), "tokenizer cut.json cannot be loaded", base),
        ("kind", settings(model={"config": {"model_type": "lama"}}), "does not know the model type 'lama'", base),
    ]
    for name, job, message, env in cases:
        result = ranks.run(tmp_path / name, job, ds_config(job, 2), env=env, world_size=2)
        assert result.codes == [2, 2], name
        assert re.search(message, result.errors[0]["message"])
        said = result.console(0) + result.console(1)
        assert said.count("error: ") in (1, 2), said
        assert "Traceback" not in said
        phases = [event["phase"] for event in result.events("phase")]
        assert "model" not in phases
        assert result.events("end")[-1]["status"] == "failed" if result.events("end") else name == "world"


@pytest.mark.train
def test_lost_data_costs_nothing(ranks: Ranks, tmp_path: Path) -> None:
    """A run that goes on without its data, or with another text, ends untouched; with the data back it goes on."""
    text = tmp_path / "a.txt"
    text.write_text("a line of text that is long enough for a few sequences\n" * 40)

    def run(steps: int) -> Result:
        job = settings(data={"builtin": None, "files": ("a.txt",)}, steps=steps, checkpoint=Checkpoint(every_steps=2))
        resume = ["--resume", "auto"] if steps > 2 else []
        return ranks.run(tmp_path, job, ds_config(job, 2), *resume, env={"DSGEN_BASE_DIR": str(tmp_path)})

    first = run(2).checked().losses
    kept = tmp_path / "kept"
    text.rename(kept)
    for content, message in ((None, "no data file matches"), ("another text\n" * 200, "the training data, its tokens")):
        if content is not None:
            text.write_text(content)
        refused = run(4)
        assert refused.codes == [2, 2]
        assert message in refused.errors[0]["message"]
        assert refused.losses == first
        assert [path.name for path in (tmp_path / "run" / "checkpoints").glob("step-*")] == ["step-00000002"]
    kept.rename(text)
    again = run(4).checked()
    assert again.report["resumed_after"] == 2
    assert again.losses[:2] == first
    assert len(again.losses) == 4


@pytest.mark.train
def test_fp16_where_the_cpu_has_none(ranks: Ranks, tmp_path: Path) -> None:
    import torch

    if torch.ops.mkldnn._is_mkldnn_fp16_supported():
        pytest.skip("oneDNN has fp16 for this CPU, so DeepSpeed trains in it")
    half = settings(model={"dtype": "fp16"})
    result = ranks.run(tmp_path / "half", half, ds_config(half, 2))
    assert result.codes == [2, 2]
    assert "does not train in fp16 on this cpu" in result.errors[0]["message"]


@pytest.mark.train
def test_configs_that_are_not_those_of_the_script(ranks: Ranks, tmp_path: Path) -> None:
    job = settings()
    other = ds_config(replace(job, micro_batch=1, accumulation=4), 2, bf16={"enabled": True})
    result = ranks.run(tmp_path / "other", job, other)
    assert result.codes == [2, 2]
    for part in ("micro batch is 2 in train.py and 1 there", "accumulation is 2 in", "precision is fp32 in"):
        assert part in result.errors[0]["message"]


@pytest.mark.train
def test_unexpected_error(ranks: Ranks, tmp_path: Path) -> None:
    """A crash of one rank ends both at once; the log has the traceback and the console one line."""
    job = settings(steps=1000)
    script = write_job(tmp_path, job, ds_config(job, 2))
    crash = (
        "        if run.ranks.rank == 1:\n            raise ZeroDivisionError('for the test')\n        runtime.train("
    )
    script.write_text(script.read_text().replace("        runtime.train(", crash))
    begun = time.monotonic()
    result = ranks.run_script(script, tmp_path / "run")
    assert time.monotonic() - begun < 30
    assert result.codes == [1, 1]
    assert result.errors[1]["type"] == "ZeroDivisionError"
    assert "for the test" in result.errors[1]["traceback"]
    assert "error: rank 1: ZeroDivisionError: for the test" in result.console(1)
    assert "Traceback" not in result.console(1)
    assert "Traceback" in result.log(1)
    assert not (tmp_path / "run" / "report.json").exists()


@pytest.mark.train
def test_an_error_after_the_block(ranks: Ranks, tmp_path: Path) -> None:
    """It is told where one inside the block is, though the training has ended well."""
    job = settings(steps=1)
    script = write_job(tmp_path, job, ds_config(job, 2))
    train = "        runtime.train(run, engine, data)\n"
    after = "    if run.ranks.rank == 1:\n        raise KeyError('too late')\n"
    script.write_text(script.read_text().replace(train, train + after))
    result = ranks.run_script(script, tmp_path / "run")
    assert result.codes == [0, 99]
    assert result.report["status"] == "finished"
    assert set(result.errors) == {1}
    assert (result.errors[1]["type"], result.errors[1]["message"]) == ("KeyError", "'too late'")
    assert "too late" in result.errors[1]["traceback"]
    assert "error: rank 1: KeyError: 'too late'" in result.console(1)
    assert "Traceback" in result.log(1)


def test_a_session_is_used_inside_its_block(tmp_path: Path) -> None:
    run = start(settings(), tmp_path)
    for name in ("corpus", "journal", "run_dir", "zero_stage"):
        with pytest.raises(AttributeError, match=rf"run\.{name} is not there yet: the run begins with `with runtime"):
            getattr(run, name)
    with pytest.raises(AttributeError, match="'Session' object has no attribute 'corpsu'"):
        getattr(run, "corpsu")  # noqa: B009
    assert not run.stop_requested


def test_version_of_the_api() -> None:
    from dsgen import runtime

    major, minor = runtime.API_VERSION
    runtime.require_api(major, 0)
    runtime.require_api(major, minor)
    with pytest.raises(SystemExit, match=r"pip install --upgrade 'dsgen\[train\]'"):
        runtime.require_api(major, minor + 1)
    with pytest.raises(SystemExit, match="render the recipe again"):
        runtime.require_api(major - 1, 0)


def test_importing_is_light() -> None:
    code = (
        "import sys; from dsgen import runtime; runtime.Settings; runtime.require_api(1, 0); "
        "sys.exit(str({'torch', 'deepspeed', 'transformers', 'numpy', 'peft'} & set(sys.modules) or '') or 0)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
