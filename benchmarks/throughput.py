"""Tokens per second of the rendered loop, beside a bare DeepSpeed loop and transformers' Trainer, on two CPU ranks.

    python benchmarks/throughput.py [--rounds N] [--steps N] [--set KEY=VALUE ...]

All three train the same model from the same ds_config.json on as many tokens, started by the same launcher. They run
in turn, N rounds; the ratios are taken within a round, since a shared machine drifts, and the figure is their median.
Nothing else should run meanwhile. Speed is that of the steps after the first five, by the clock of rank 0.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
SKIPPED = 5
RECIPE = """\
schema: 1
extends: {base}
name: throughput
model: {{model_type: llama, hidden_size: 256, intermediate_size: 688, num_hidden_layers: 4, num_attention_heads: 4,
  num_key_value_heads: 2, vocab_size: 257, max_position_embeddings: 256, initializer_range: 0.04}}
batch: {{sequence_length: 128, micro: 4, accumulation: 2}}
length: {{steps: {steps}}}
memory: {{reclaim_every: 0}}
checkpoint: {{at_end: false}}
"""
LOOPS = {"dsgen": "", "bare": "entrypoint: bare_loop.py\n", "Trainer": "entrypoint: trainer.py\n"}


def write_recipes(folder: Path, steps: int) -> None:
    """One recipe for each loop, and the two scripts beside them."""
    text = RECIPE.format(base=HERE.parent / "recipes" / "tiny-cpu.yaml", steps=steps)
    for name, line in LOOPS.items():
        (folder / f"{name}.yaml").write_text(text + line)
    (folder / "bare_loop.py").write_bytes((HERE / "bare_loop.py").read_bytes())
    (folder / "trainer.py").write_bytes((HERE.parent / "docs" / "examples" / "trainer.py").read_bytes())


def tokens_per_second(folder: Path, name: str, number: int, overrides: list[str]) -> float:
    """Run one loop to its end and read its metrics."""
    run = folder / "runs" / f"{name}-{number}"
    words = [*(f"--set={override}" for override in overrides), f"--run-dir={run}", str(folder / f"{name}.yaml")]
    environ = {name: value for name, value in os.environ.items() if name != "DS_ACCELERATOR"}
    done = subprocess.run(
        [sys.executable, "-m", "dsgen", "launch", *words], env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{name} failed:\n{done.stdout}{done.stderr}")
    times = [json.loads(line)["time"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    batch = json.loads((run / "ds_config.json").read_text())["train_batch_size"]
    return float(batch * 128 * (len(times) - SKIPPED) / (times[-1] - times[SKIPPED - 1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--set", action="append", default=[], dest="overrides")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_recipes(folder, arguments.steps)
        speeds: dict[str, list[float]] = {name: [] for name in LOOPS}
        names = list(LOOPS)
        for number in range(arguments.rounds):
            # Another one begins each round: whoever runs second finds warmer caches.
            for name in names[number % 3 :] + names[: number % 3]:
                speeds[name].append(tokens_per_second(folder, name, number, arguments.overrides))
            print(f"round {number + 1}: " + ", ".join(f"{name} {found[-1]:,.0f}" for name, found in speeds.items()))
    for name in ("bare", "Trainer"):
        ratios = sorted(mine / other for mine, other in zip(speeds["dsgen"], speeds[name], strict=True))
        middle = statistics.median(ratios)
        print(f"dsgen / {name}: median {middle:.3f}, from {ratios[0]:.3f} to {ratios[-1]:.3f}")


if __name__ == "__main__":
    main()
