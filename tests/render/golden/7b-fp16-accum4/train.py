#!/usr/bin/env python3
"""Train 7b-fp16-accum4.

Rendered by dsgen from a recipe; change the recipe and render again rather than editing this file.
Started by launch.sh, once per rank. `--resume auto` goes on from the newest checkpoint of the run folder.
"""

import sys
from pathlib import Path

try:
    from dsgen import runtime
except ImportError:
    sys.exit("train.py needs the training side of dsgen: pip install 'dsgen[train]'")

runtime.require_api(1, 1)

SETTINGS = runtime.Settings(
    name="7b-fp16-accum4",
    accelerator="npu",
    backend="hccl",
    world_size=8,
    model=runtime.Model(
        config={
            "model_type": "llama",
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": 32000,
            "tie_word_embeddings": False,
            "max_position_embeddings": 4096,
            "rope_scaling": None,
            "rms_norm_eps": 1e-05,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        dtype="fp16",
        checkpoint_every_layers=1,
    ),
    data=runtime.Data(
        sequence_length=4096,
        files=("data/*.jsonl",),
        mode="packed",
        text_field="text",
        tokenizer="./tokenizer",
        shuffle=True,
    ),
    micro_batch=2,
    accumulation=4,
    steps=2000,
    seed=42,
    reclaim_every_steps=0,
    log_every_steps=1,
    checkpoint=runtime.Checkpoint(
        every_steps=500,
        every_seconds=0.0,
        keep=3,
        at_end=True,
    ),
)


def main() -> None:
    with runtime.start(SETTINGS, folder=Path(__file__).resolve().parent) as run:
        # Imported here: DeepSpeed chooses its accelerator when it is imported, and start has checked it.
        import deepspeed

        data = runtime.build_data(run)
        model = runtime.build_model(run)
        engine, _, _, _ = deepspeed.initialize(
            model=model,
            model_parameters=runtime.trainable_parameters(model),
            config=str(run.ds_config),
        )
        runtime.train(run, engine, data)


if __name__ == "__main__":
    main()
