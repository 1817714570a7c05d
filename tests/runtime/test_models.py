"""Models of every kind that a recipe can ask for, trained by two real ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsgen.runtime.settings import Adapter, Checkpoint, Evaluation
from tests.runtime.conftest import TINY, Ranks, Result, StageRuns, ds_config, replace, settings, write_job

pytestmark = pytest.mark.train

SAVE = '''\
"""Saves a model with transformers alone, in shards, and says its loss on the first batches of the job."""
import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from dsgen.runtime.batches import TrainingData
from dsgen.runtime.corpus import prepare_corpus
from dsgen.runtime.settings import Adapter, Checkpoint, Data, Evaluation, Model, Settings
from dsgen.runtime.tokens import load_tokenizer

SETTINGS = {settings!r}
folder = Path(__file__).resolve().parent
torch.manual_seed(11)
model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**SETTINGS.model.config), dtype=torch.float32)
with torch.no_grad():
    for parameter in model.parameters():
        parameter.mul_(1.5)
model.save_pretrained(folder / "weights", max_shard_size="20KB")
single = {{name.removeprefix("model."): value for name, value in model.model.state_dict().items()}}
tokenizer = load_tokenizer(SETTINGS, folder, SETTINGS.model.config["vocab_size"], None)
corpus = prepare_corpus(SETTINGS, tokenizer, folder, folder)
parts = [TrainingData(SETTINGS, corpus, rank=rank, device="cpu") for rank in range(SETTINGS.world_size)]
losses = []
for _ in range(2):
    total = targets = 0
    for data in parts:
        batch = data.next_batch()
        for samples in data.micro_batches(batch):
            tensors, count = data.tensors(samples)
            with torch.no_grad():
                logits = model(input_ids=tensors["input_ids"]).logits[:, :-1].flatten(0, 1)
            labels = tensors["labels"][:, 1:].flatten()
            loss = torch.nn.functional.cross_entropy(logits.double(), labels, reduction="sum", ignore_index=-100)
            total += float(loss)
            targets += int((labels != -100).sum())
    losses.append(total / targets)
(folder / "losses.json").write_text(json.dumps(losses))
'''

TIED = {**TINY, "tie_word_embeddings": True, "num_hidden_layers": 3}
QWEN = {
    **{key: value for key, value in TINY.items() if key != "model_type"},
    "model_type": "qwen3",
    "head_dim": 16,
    "use_sliding_window": False,
    "layer_types": ["full_attention", "full_attention"],
}


@pytest.fixture(scope="module")
def saved(ranks: Ranks, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Folders with weights in several shards and the losses that transformers gets with them."""
    folders = {}
    for name, config in (("llama", TINY), ("tied", TIED), ("qwen3", QWEN)):
        folder = tmp_path_factory.mktemp(name)
        job = settings(model={"config": config})
        script = write_job(folder, job, {}, SAVE)
        ranks.run_script(script, folder / "run", world_size=1).checked()
        folders[name] = folder
    return folders


@pytest.mark.parametrize(("name", "stage"), [("llama", 0), ("llama", 2), ("llama", 3), ("tied", 3), ("qwen3", 3)])
def test_given_weights(ranks: Ranks, saved: dict[str, Path], tmp_path: Path, name: str, stage: int) -> None:
    """The first loss is the one that transformers alone gets with the same weights and text."""
    folder = saved[name]
    assert len(list((folder / "weights").glob("*.safetensors"))) > 1
    config = {"llama": TINY, "tied": TIED, "qwen3": QWEN}[name]
    job = settings(model={"config": config, "weights": str(folder / "weights")}, steps=1)
    result = ranks.run(tmp_path, job, ds_config(job, stage)).checked()
    assert result.losses[0] == pytest.approx(json.loads((folder / "losses.json").read_text())[0], abs=2e-6)


def test_weights_that_do_not_fit(ranks: Ranks, saved: dict[str, Path], tmp_path: Path) -> None:
    weights = str(saved["llama"] / "weights")
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("deep", {**TINY, "num_hidden_layers": 3}, "9 of the model's weights are missing there (model.layers.2."),
        ("shallow", {**TINY, "num_hidden_layers": 1}, "9 weights there have no place in the model (model.layers.1."),
        ("wide", {**TINY, "intermediate_size": 48}, "gate_proj.weight is [64, 32] there and [48, 32] in the model"),
    ]
    for name, config, message in cases:
        job = settings(model={"config": config, "weights": weights})
        for stage in (2, 3) if name == "wide" else (2,):
            result = ranks.run(tmp_path / f"{name}-{stage}", job, ds_config(job, stage))
            assert result.codes == [2, 2]
            assert message in result.errors[0]["message"]


def test_only_the_own_part_is_held(ranks: Ranks, tmp_path: Path) -> None:
    """At stage 3 a rank holds its share of the weights and little more while they are drawn or read."""
    config = {**TINY, "hidden_size": 256, "intermediate_size": 1024, "num_hidden_layers": 24}
    job = settings(model={"config": config}, steps=1)
    script = write_job(tmp_path, job, ds_config(job, 3))
    watch = """\
def anonymous():
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) * 1024

def watched(build):
    import ctypes, json, threading
    from dsgen.runtime import weights
    # Every tensor in a mapping of its own (M_MMAP_THRESHOLD): what is freed is gone, and only what is held is counted.
    ctypes.CDLL(None).mallopt(-3, 4096)
    weights._GATHERED_ELEMENTS = 1 << 20
    before, peak, done = anonymous(), [0], threading.Event()
    def look():
        while not done.wait(0.002):
            peak[0] = max(peak[0], anonymous())
    thread = threading.Thread(target=look)
    thread.start()
    model = build()
    done.set()
    thread.join()
    every = sum(parameter.ds_numel for parameter in model.parameters()) * 4
    import os
    (Path(SETTINGS.model.weights or __file__).parent / f"held-{os.environ['RANK']}.json").write_text(
        json.dumps([peak[0] - before, every]))
    return model
"""
    text = script.read_text().replace("def main(", watch + "\n\ndef main(")
    text = text.replace("runtime.build_model(run)", "watched(lambda: runtime.build_model(run))")
    script.write_text(text.replace("        engine, _", "        return\n        engine, _"))
    ranks.run_script(script, tmp_path / "run").checked()
    for rank in range(2):
        held, every = json.loads((tmp_path / f"held-{rank}.json").read_text())
        assert every > 80e6
        # Half of it is this rank's own.
        assert held < 0.65 * every


@pytest.mark.parametrize("stage", [2, 3])
def test_adapter(ranks: Ranks, saved: dict[str, Path], tmp_path: Path, stage: int) -> None:
    """LoRA: starts as the model it adapts, trains the low-rank matrices only, can be continued."""
    job = settings(
        model={
            "weights": str(saved["llama"] / "weights"),
            "adapter": Adapter(rank=4, alpha=8, targets=("q_proj", "v_proj")),
            "checkpoint_every_layers": 1,
        },
        steps=6,
        checkpoint=Checkpoint(every_steps=3),
    )
    result = ranks.run(tmp_path, job, ds_config(job, stage)).checked()
    assert result.losses[0] == pytest.approx(json.loads((saved["llama"] / "losses.json").read_text())[0], abs=2e-6)
    assert result.losses[-1] < result.losses[0]
    # A (32 to 4) and B (4 to 32 or 16) beside q and v of two layers.
    assert result.report["trainable_parameters"] == 2 * (4 * 32 + 32 * 4 + 4 * 32 + 16 * 4)
    checkpoint = tmp_path / "run" / "checkpoints" / "step-00000003"
    # Frozen weights are not saved again and again.
    assert sum(file.stat().st_size for file in checkpoint.glob("*states.pt")) < 150_000
    resumed = ranks.run(
        tmp_path, job, ds_config(job, stage), "--resume", str(checkpoint), run_dir=tmp_path / "again"
    ).checked()
    assert resumed.losses == result.losses[3:]


def test_adapter_that_fits_nothing(ranks: Ranks, tmp_path: Path) -> None:
    job = settings(model={"adapter": Adapter(rank=4, alpha=8, targets=("query",))})
    result = ranks.run(tmp_path, job, ds_config(job, 2))
    assert result.codes == [2, 2]
    assert "the adapter fits no layer" in result.errors[0]["message"]
    assert "down_proj, gate_proj, k_proj, lm_head, o_proj" in result.errors[0]["help"]


@pytest.mark.parametrize(
    ("stage", "model"),
    [
        (1, {"checkpoint_every_layers": 1}),
        (1, {"checkpoint_every_layers": 2}),
        (3, {"checkpoint_every_layers": 1}),
        (3, {"checkpoint_every_layers": 2}),
        (1, {"loss_chunk_tokens": 7}),
        (3, {"loss_chunk_tokens": 16, "checkpoint_every_layers": 1}),
        (1, {"attention": "eager"}),
    ],
)
def test_same_training_by_other_means(
    ranks: Ranks, stage_runs: StageRuns, tmp_path: Path, stage: int, model: dict[str, Any]
) -> None:
    """Recomputed activations, chunked loss, another attention: less memory or another kernel, the same numbers."""
    job = settings(model=model, steps=6)
    result = ranks.run(tmp_path, job, ds_config(job, stage)).checked()
    assert result.losses == pytest.approx(stage_runs.get("fp32", "1").losses[:6], abs=1e-5, rel=0)


def test_accumulation_is_one_large_batch(ranks: Ranks, tmp_path: Path) -> None:
    """Micro 1 x 4 and micro 4 x 1: the same losses, also where sequences have different numbers of targets."""
    lines = [json.dumps({"prompt": "ab" * (i % 7), "answer": "the answer " * (1 + i % 5)}) for i in range(64)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    data = {"builtin": None, "files": (str(tmp_path / "rows.jsonl"),), "mode": "instruction"}
    results: dict[tuple[str, int], Result] = {}
    for mode in ("packed", "instruction"):
        for micro in (1, 4):
            job = settings(micro_batch=micro, accumulation=4 // micro, steps=6)
            if mode == "instruction":
                job = replace(job, data=settings(data=data).data)
            results[mode, micro] = ranks.run(tmp_path / f"{mode}{micro}", job, ds_config(job, 2)).checked()
        assert results[mode, 1].losses == pytest.approx(results[mode, 4].losses, abs=1e-5, rel=0)


def test_loss_is_the_mean_over_all_labels(ranks: Ranks, tmp_path: Path) -> None:
    """Against transformers alone, with answers of very different lengths on the two ranks."""
    lines = [json.dumps({"prompt": "p" * (i % 9), "answer": "answer" * (1 + (i % 4) * (i % 3))}) for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    data = {"builtin": None, "files": (str(tmp_path / "rows.jsonl"),), "mode": "instruction"}
    job = settings(data=data, steps=1)
    write_job(tmp_path / "save", job, {}, SAVE)
    ranks.run_script(tmp_path / "save" / "train.py", tmp_path / "save" / "run", world_size=1).checked()
    expected = json.loads((tmp_path / "save" / "losses.json").read_text())[0]
    for chunk in (0, 5):
        with_weights = replace(
            job, model=settings(model={"weights": str(tmp_path / "save" / "weights"), "loss_chunk_tokens": chunk}).model
        )
        result = ranks.run(tmp_path / f"run{chunk}", with_weights, ds_config(job, 1)).checked()
        assert result.losses[0] == pytest.approx(expected, abs=2e-6)


def test_evaluation_and_reclaim(ranks: Ranks, stage_runs: StageRuns, tmp_path: Path) -> None:
    job = settings(evaluation=Evaluation(every_steps=2, steps=3), steps=4, reclaim_every_steps=2, log_every_steps=3)
    result = ranks.run(tmp_path, job, ds_config(job, 3)).checked()
    evaluations = result.events("evaluation")
    assert [event["step"] for event in evaluations] == [2, 4]
    assert evaluations[1]["loss"] < evaluations[0]["loss"]
    assert result.report["evaluation_loss"] == evaluations[1]["loss"]
    assert result.events("plan")[0]["samples_per_epoch"] == result_samples(stage_runs) - 3 * 2 * 2
    assert [line.split()[1] for line in result.console().splitlines()] == ["2:", "3/4", "4/4", "4:"]


def result_samples(stage_runs: StageRuns) -> int:
    samples: int = stage_runs.get("fp32", "1").events("plan")[0]["samples_per_epoch"]
    return samples
