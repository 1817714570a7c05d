"""Jobs for the comparison with the real engine: a covering design over what memory depends on."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import yaml

from dsgen.memory.job import read_job
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import load_recipe
from dsgen.recipe.plan import Plan
from dsgen.recipe.resolve import resolve

from ..conftest import BASE
from .conftest import Engine, engine_job, together

SEED = 6
SHAPES: dict[str, dict[str, int]] = {
    "plain": {"hidden_size": 128, "intermediate_size": 352, "num_hidden_layers": 5, "vocab_size": 512},
    # Logits, activations and states in turn hold most.
    "large vocabulary": {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 3, "vocab_size": 6144},
    "wide": {"hidden_size": 256, "intermediate_size": 704, "num_hidden_layers": 3, "vocab_size": 256},
    "deep": {"hidden_size": 64, "intermediate_size": 176, "num_hidden_layers": 11, "vocab_size": 256},
}
SMALL = {
    "sub_group_size": 120_000,
    "stage3_prefetch_bucket_size": 50_000,
    "stage3_max_live_parameters": 200_000,
    "stage3_max_reuse_distance": 200_000,
    "stage3_param_persistence_threshold": 1000,
}
TIGHT = {
    "sub_group_size": 20_000,
    "stage3_prefetch_bucket_size": 0,
    "stage3_max_live_parameters": 0,
    "stage3_max_reuse_distance": 0,
    "stage3_param_persistence_threshold": 0,
}
FACTORS: dict[str, tuple[Any, ...]] = {
    "stage": (0, 1, 2, 3),
    "ranks": (2, 1, 3),
    "offload": ((), ("optimizer",), ("optimizer", "parameters")),
    "accumulation": (1, 3),
    "precision": ("bf16", "fp32", "fp16"),
    "fp32 sums": (False, True),
    "bucket": (75_000, 5_000, 4_000_000),
    "overlap": (False, True),
    "contiguous": (True, False),
    "limits": ("small", "tight", "usual"),
    "checkpointing": ("full", "none", "every 2", "sqrt"),
    "micro": (1, 3),
    "sequence": (64, 32, 256),
    "key_value_heads": (2, 8),
    "tied": (False, True),
    "chunk": (0, 40),
    "adapter": ("none", "some", "all"),
    "attention": ("sdpa", "eager"),
    "shape": tuple(SHAPES),
}
"""What a job of the grid chooses from."""

Choice = dict[str, Any]


def possible(choice: Choice) -> bool:
    """Whether DeepSpeed takes it, and whether it says anything that does nothing."""
    stage: int = choice.get("stage", 3)
    if len(choice.get("offload", ())) > (0, 1, 1, 2)[stage]:
        return False
    # Where a factor does nothing only its first value stands for it.
    idle: dict[int, tuple[str, ...]] = {
        0: ("fp32 sums", "bucket", "overlap", "contiguous", "limits"),
        1: ("limits",),
        2: ("limits",),
    }
    silent = idle.get(stage, ())
    if (stage, choice.get("precision"), choice.get("fp32 sums"), choice.get("offload")) == (1, "bf16", True, ()):
        # BF16_Optimizer
        silent += ("bucket", "overlap", "contiguous")
    if any(name in choice and choice[name] != FACTORS[name][0] for name in silent):
        return False
    return not (choice.get("precision") == "fp32" and choice.get("fp32 sums"))


def design(rows: int) -> list[Choice]:
    """`rows` jobs that hold every possible pair of values as often as so many can; any beginning of them is one too."""
    chance = random.Random(SEED)
    names = list(FACTORS)
    every = {
        (one, i, other, j)
        for one, other in itertools.combinations(names, 2)
        for i, first in enumerate(FACTORS[one])
        for j, second in enumerate(FACTORS[other])
        if possible({one: first, other: second})
    }
    missing: set[tuple[str, int, str, int]] = set()

    def pairs(picked: dict[str, int]) -> set[tuple[str, int, str, int]]:
        return {(one, picked[one], other, picked[other]) for one, other in itertools.combinations(names, 2)}

    found: list[Choice] = []
    while len(found) < rows:
        missing = missing or set(every)
        one, i, other, j = chance.choice(sorted(missing))
        best: dict[str, int] = {}
        gained = 0
        for _ in range(40):
            picked = {name: chance.randrange(len(values)) for name, values in FACTORS.items()} | {one: i, other: j}
            picked = _mended(picked)
            new = len(pairs(picked) & missing)
            if new > gained and possible({name: FACTORS[name][i] for name, i in picked.items()}):
                best, gained = picked, new
        if best:
            missing -= pairs(best)
            found.append({name: FACTORS[name][i] for name, i in best.items()})
    return found


def _mended(picked: dict[str, int]) -> dict[str, int]:
    """With the first value for what does nothing at the stage that was picked."""
    for name in FACTORS:
        said = {"stage", "precision", "fp32 sums", "offload", name}
        if not possible({each: FACTORS[each][picked[each]] for each in said}):
            picked = {**picked, name: 0}
    return picked


def recipe(choice: Choice) -> dict[str, Any]:
    """The fields of a recipe that says it."""
    stage, offload = choice["stage"], choice["offload"]
    zero: dict[str, Any] = {"stage": stage}
    if stage:
        zero |= {"reduce_bucket_size": choice["bucket"], "contiguous_gradients": choice["contiguous"]}
        zero["overlap_comm"] = choice["overlap"]
    if offload:
        zero["offload"] = dict.fromkeys(offload, "cpu")
    if stage == 3:
        zero |= {"small": SMALL, "tight": TIGHT, "usual": {}}[choice["limits"]]
    precision: Any = choice["precision"]
    if precision != "fp32" and stage:
        precision = {"type": precision, "accumulate": "fp32" if choice["fp32 sums"] else precision}
    said: dict[str, Any] = {
        "model": {
            "model_type": "llama",
            "num_attention_heads": 8,
            "num_key_value_heads": choice["key_value_heads"],
            "max_position_embeddings": 1024,
            "tie_word_embeddings": choice["tied"],
            **SHAPES[choice["shape"]],
        },
        "precision": precision,
        "zero": zero,
        "batch": {
            "sequence_length": choice["sequence"],
            "micro": choice["micro"],
            "accumulation": choice["accumulation"],
        },
        "attention": choice["attention"],
        "activation_checkpointing": {"every 2": {"every": 2}}.get(choice["checkpointing"], choice["checkpointing"]),
        "optimizer": {"type": "AdamW", "lr": 1e-4, **({} if offload else {"torch_adam": True})},
        "hardware": {"device": "cpu", "per_node": choice["ranks"]},
        "data": {"builtin": "python-topics"},
        "tokenizer": "bytes",
    }
    if choice["chunk"]:
        said["loss"] = {"chunk_tokens": choice["chunk"]}
    if choice["adapter"] != "none":
        said["adapter"] = {"rank": 4, "targets": {"some": ["q_proj", "v_proj"], "all": "all-linear"}[choice["adapter"]]}
    return said


@dataclass(frozen=True)
class Result:
    """A job of the grid as it is counted and as it was measured, in bytes by phase."""

    choice: Choice
    closed: dict[str, int]
    measured: dict[str, int]

    @property
    def error(self) -> float:
        """Of the peak, relative."""
        return max(self.closed.values()) / max(self.measured.values()) - 1

    @property
    def is_close(self) -> bool:
        """Whether the peak is as near as it must be."""
        return abs(self.error) <= 0.01

    @property
    def phase(self) -> str:
        """The one that is said to hold most."""
        return max(self.closed, key=lambda phase: self.closed[phase])

    @property
    def is_right_phase(self) -> bool:
        """Whether it does, or does but for 1 %."""
        return self.measured[self.phase] >= 0.99 * max(self.measured.values())

    def __str__(self) -> str:
        unusual = {name: value for name, value in self.choice.items() if value != FACTORS[name][0]}
        return (
            f"{100 * self.error:+.2f} % in {self.phase}: {unusual}\n  counted {self.closed}\n  measured {self.measured}"
        )


def measure(choices: Sequence[Choice], engines: Mapping[int, Engine], folder: Path) -> list[Result]:
    """Each of the jobs, two at a time. `engines`: by number of ranks."""
    plans = [_plan(choice, folder) for choice in choices]

    def results(counts: Sequence[int]) -> list[tuple[int, Result]]:
        return [
            (i, _result(choice, plan, engines[choice["ranks"]]))
            for count in counts
            for i, (choice, plan) in enumerate(zip(choices, plans, strict=True))
            if choice["ranks"] == count
        ]

    with ThreadPoolExecutor(2) as pool:
        return [result for _, result in sorted(itertools.chain(*pool.map(results, ((2,), (1, 3)))), key=itemgetter(0))]


def _plan(choice: Choice, folder: Path) -> Plan:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump({**BASE, **recipe(choice)}))
    return resolve(check_recipe(load_recipe(path, ())))


def _result(choice: Choice, plan: Plan, engine: Engine) -> Result:
    job = read_job(plan)
    measured = engine.measure(engine_job(plan))["peaks"]
    measured.pop("model")
    measured["step"] = max(measured["step"], measured.pop("between steps"))
    # The engine of three ranks is the last of them.
    closed = together(job, 2 if choice["ranks"] == 3 else 0)
    return Result(choice, {phase: closed[phase] for phase in measured}, measured)
