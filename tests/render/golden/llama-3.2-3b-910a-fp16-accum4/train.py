#!/usr/bin/env python3
"""Train llama-3.2-3b-910a-fp16-accum4.

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
    name="llama-3.2-3b-910a-fp16-accum4",
    accelerator="npu",
    backend="hccl",
    world_size=8,
    model=runtime.Model(
        config={
            "model_type": "llama",
            "hidden_size": 3072,
            "intermediate_size": 8192,
            "num_hidden_layers": 28,
            "num_attention_heads": 24,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 128256,
            "tie_word_embeddings": True,
            "attention_bias": False,
            "attention_dropout": 0.0,
            "mlp_bias": False,
            "max_position_embeddings": 131072,
            "rope_theta": 500000.0,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            },
            "rms_norm_eps": 1e-05,
            "hidden_act": "silu",
            "initializer_range": 0.02,
            "bos_token_id": 128000,
            "eos_token_id": 128001,
        },
        dtype="fp16",
        checkpoint_every_layers=1,
        loss_chunk_tokens=1024,
    ),
    data=runtime.Data(
        sequence_length=1024,
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
