#!/usr/bin/env python3
"""Train tiny-npu.

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
    name="tiny-npu",
    accelerator="npu",
    backend="hccl",
    world_size=2,
    model=runtime.Model(
        config={
            "model_type": "llama",
            "hidden_size": 256,
            "intermediate_size": 688,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 257,
            "max_position_embeddings": 256,
            "initializer_range": 0.04,
        },
        dtype="bf16",
        checkpoint_every_layers=0,
    ),
    data=runtime.Data(
        sequence_length=64,
        builtin="python-topics",
        mode="packed",
        tokenizer="bytes",
        shuffle=True,
    ),
    micro_batch=2,
    accumulation=2,
    steps=120,
    seed=42,
    reclaim_every_steps=50,
    log_every_steps=1,
    checkpoint=runtime.Checkpoint(
        every_steps=0,
        every_seconds=0.0,
        keep=0,
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
