"""CPU milliseconds of one estimate of memory: every shipped recipe, and a model of 80 layers at each stage.

    python benchmarks/estimate.py [--repeat N]

The first estimate of a model also counts its parameters, which is kept; it is not in these times.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from dsgen.memory.estimate import estimate
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.plan import Plan
from dsgen.recipe.resolve import resolve

RECIPES = Path(__file__).resolve().parent.parent / "recipes"
LARGE = (
    "model=llama-2-70b",
    "precision=bf16",
    "zero.overlap_comm=null",
    "hardware.nodes=8",
    "hardware.host_memory=2TiB",
)
OFFLOAD = {"none": (), "optimizer": ("optimizer",), "optimizer + parameters": ("optimizer", "parameters")}


def plans() -> Iterator[tuple[str, Plan]]:
    """What is estimated, and its name."""
    for path in sorted(RECIPES.glob("*.yaml")):
        yield path.stem, resolve(check_recipe(load_recipe(path, ())))
    for stage in range(4):
        for offload, parts in list(OFFLOAD.items())[: (1, 2, 2, 3)[stage]]:
            for checkpointing in ("full", "none"):
                said = (
                    *LARGE,
                    f"zero.stage={stage}",
                    f"activation_checkpointing={checkpointing}",
                    *(f"zero.offload.{part}=cpu" for part in parts),
                )
                plan = resolve(check_recipe(load_recipe(RECIPES / "13b-zero2.yaml", said)))
                yield f"80 layers, stage {stage}, offload {offload}, checkpointing {checkpointing}", plan


def milliseconds(plan: Plan, repeat: int) -> list[float]:
    """The times of `repeat` estimates, shortest first."""
    estimate(plan)
    took = []
    for _ in range(repeat):
        begun = time.process_time()
        estimate(plan)
        took.append(1000 * (time.process_time() - begun))
    return sorted(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=50)
    repeat = parser.parse_args().repeat
    for name, plan in plans():
        took = milliseconds(plan, repeat)
        print(f"{name:75} shortest {took[0]:5.2f}   median {statistics.median(took):5.2f}   longest {took[-1]:6.2f}")


if __name__ == "__main__":
    main()
