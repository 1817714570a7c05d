"""What a run has learned, loaded by transformers and peft alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dsgen.runtime.settings import Adapter, Checkpoint, Evaluation
from tests.runtime.conftest import TINY, Ranks, ds_config, settings, write_job

pytestmark = pytest.mark.train

EXPORT = '''\
"""Exports a run twice and says the loss on its held-out part with transformers alone."""
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from dsgen.runtime import export
from dsgen.runtime.batches import TrainingData
from dsgen.runtime.corpus import prepare_corpus
from dsgen.runtime.settings import Adapter, Checkpoint, Data, Evaluation, Model, Settings
from dsgen.runtime.tokens import load_tokenizer

SETTINGS = {settings!r}
folder = Path(__file__).resolve().parent
export.SHARD_BYTES = 30000
out = export.export(folder.parent / "run", folder / "exported", dtype="fp32")
if SETTINGS.model.adapter is None:
    model = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
else:
    from peft import PeftModel

    base = AutoModelForCausalLM.from_pretrained(SETTINGS.model.weights, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, out)
model.eval()
tokenizer = load_tokenizer(SETTINGS, folder, SETTINGS.model.config["vocab_size"], None)
corpus = prepare_corpus(SETTINGS, tokenizer, folder, folder)
total = targets = 0
for rank in range(SETTINGS.world_size):
    data = TrainingData(SETTINGS, corpus, rank=rank, device="cpu")
    for batch in data.held_out():
        for samples in data.micro_batches(batch):
            tensors, count = data.tensors(samples)
            with torch.no_grad():
                total += float(model(**tensors).loss) * count
            targets += count
(folder / "loss.json").write_text(json.dumps(total / targets))
'''


@pytest.mark.parametrize(
    ("stage", "config", "adapter"),
    [(0, TINY, False), (2, {**TINY, "tie_word_embeddings": True}, False), (3, TINY, False), (3, TINY, True)],
)
def test_export(ranks: Ranks, tmp_path: Path, stage: int, config: dict[str, Any], adapter: bool) -> None:
    base: dict[str, Any] = {
        "steps": 5,
        "evaluation": Evaluation(every_steps=5, steps=2),
        "checkpoint": Checkpoint(every_steps=2),
    }
    job = settings(model={"config": config}, **base)
    if adapter:
        # The base of the adapter is itself an exported run.
        ranks.run(tmp_path / "base", job, ds_config(job, 1)).checked()
        write_job(tmp_path / "base" / "export", job, {}, EXPORT)
        ranks.run_script(
            tmp_path / "base" / "export" / "train.py", tmp_path / "base" / "export" / "run", world_size=1
        ).checked()
        weights = str(tmp_path / "base" / "export" / "exported")
        lora = Adapter(rank=4, alpha=16, targets=("all-linear",))
        job = settings(model={"config": config, "weights": weights, "adapter": lora}, **base)
    result = ranks.run(tmp_path, job, ds_config(job, stage)).checked()
    script = write_job(tmp_path / "export", job, {}, EXPORT)
    ranks.run_script(script, tmp_path / "export" / "run", world_size=1).checked()
    loss = json.loads((tmp_path / "export" / "loss.json").read_text())
    assert loss == pytest.approx(result.report["evaluation_loss"], abs=2e-6)
    exported = sorted(path.name for path in (tmp_path / "export" / "exported").glob("*.safetensors"))
    assert exported == ["adapter_model.safetensors"] if adapter else len(exported) > 3
