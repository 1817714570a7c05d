"""A ds_config.json as a recipe that renders back to a config of the same meaning, and what there is to say about it.

Where a recipe leaves something open, dsgen decides it, and often otherwise than DeepSpeed's defaults do. So whatever
the config leaves to DeepSpeed is written out here wherever dsgen would decide otherwise; only `auto` is left to dsgen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dsgen.catalog.deepspeed_keys import Key, load_keys
from dsgen.documents.positions import Path
from dsgen.dsconfig.import_notes import Notes, Remark
from dsgen.dsconfig.job import Job
from dsgen.dsconfig.settled import Config, leaves, settled, taken
from dsgen.dsconfig.training_from import optimizer_section, precision_section, schedule_section
from dsgen.dsconfig.view import whole
from dsgen.dsconfig.zero_from import zero_section
from dsgen.findings import Finding, Severity
from dsgen.recipe.words import merged
from dsgen.rules.keys import WITHOUT_EFFECT
from dsgen.rules.view import lookup, shown, truth, uses_bf16_optimizer

RankSource = Literal["said", "inferred", "guessed"]


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a config cannot say of its job, as words for the recipe; None where nobody has said it."""

    name: str = "imported"
    model: str | None = None
    device: str | None = None
    per_node: int | None = None
    weights: str | None = None
    tokenizer: str | None = None
    data: tuple[str, ...] = ()
    steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class Imported:
    """A recipe, comments by recipe path, and remarks in the order in which they were made."""

    recipe: Config
    comments: Mapping[Path, str]
    remarks: tuple[Remark, ...]
    ignored: frozenset[str] = frozenset()
    """Paths in the document of the keys that DeepSpeed does not know and ignores."""

    def of_kind(self, kind: str) -> tuple[Remark, ...]:
        """The remarks of one kind."""
        return tuple(remark for remark in self.remarks if remark.kind == kind)


def recipe_from(config: Mapping[str, Any], job: Job, said: Surroundings) -> Imported:
    """The recipe of a config that the lint finds no fault with but those of `blocking`."""
    keys = load_keys(job.deepspeed)
    read = settled(config, keys)
    notes = Notes(settled=read, source=keys)
    for words, why in read.ignored.items():
        notes.remarks.append(Remark(kind="left-out", path=words, text=why))
    for words, new in read.renamed.items():
        notes.remarks.append(Remark(kind="renamed", path=words, text=f"is {new} today"))
    rest = read.values
    batch = {name: rest.pop(name, None) for name in _BATCH}
    zero, optimizer, scheduler = (taken(rest, name) for name in ("zero_optimization", "optimizer", "scheduler"))
    stage = whole(zero.get("stage")) or 0
    if notes.auto("zero_optimization.stage"):
        stage = notes.decided("zero_optimization.stage", "zero.stage", 2, "accelerate's default")

    recipe: Config = {"schema": 1, "name": said.name}
    recipe["model"] = said.model or notes.fill_in("model", "MODEL", "a preset (`dsgen models`), or a config.json")
    if said.weights:
        recipe["weights"] = said.weights
    else:
        text = "none: training starts from random weights; give `weights:` to start from a checkpoint"
        notes.remarks.append(Remark(kind="fill-in", path="weights", text=text))
    precision = precision_section(rest, stage, job, notes)
    short = set(precision) == {"type"} and ("precision", "type") not in notes.comments
    recipe["precision"] = precision["type"] if short else precision
    shards = _parallel(rest, notes)
    recipe["batch"], ranks, source = _batch(batch, shards, job, said, notes)
    recipe["length"] = _length(scheduler, said, notes)
    offloaded = lookup(zero, "offload_optimizer.device")
    bf16_optimizer = uses_bf16_optimizer(stage, precision["type"], precision.get("accumulate"), offloaded)
    recipe["zero"] = zero_section(zero, stage, bf16_optimizer, notes)
    recipe["optimizer"] = optimizer_section(optimizer, rest, job, notes)
    schedule = schedule_section(scheduler, recipe["optimizer"]["lr"], recipe["length"]["steps"], notes)
    if schedule:
        recipe["schedule"] = schedule
    _clipping(rest, recipe, notes)
    parallel = {name: size for name, size in shards.items() if size > 1}
    if parallel:
        recipe["parallel"] = parallel
    recipe["hardware"] = _hardware(ranks, source, job, said, notes)
    files = list(said.data) if len(said.data) != 1 else said.data[0]
    recipe["data"] = {"files": files or notes.fill_in("data.files", "data/*.jsonl", "the text to train on")}
    recipe["tokenizer"] = said.tokenizer or notes.fill_in("tokenizer", "./tokenizer", "the model's tokenizer")
    raw = _raw(rest, notes)
    if raw:
        recipe["deepspeed"] = raw
    for canonical in tuple(read.autos):
        notes.derived(canonical, f"DeepSpeed's default, {shown(notes.default_of(canonical))}: nobody fills it in")
    return Imported(
        recipe=recipe, comments=notes.comments, remarks=tuple(notes.remarks), ignored=frozenset(read.ignored)
    )


def blocking(findings: tuple[Finding, ...], config: Mapping[str, Any], imported: Imported) -> tuple[Finding, ...]:
    """The findings of lint that stand in the way: errors that the import itself does not settle."""
    left_out = tuple(remark.path for remark in imported.of_kind("left-out"))
    renamed = {remark.path for remark in imported.of_kind("renamed")}

    def settled_here(finding: Finding) -> bool:
        if finding.code in _SETTLED or lookup(config, finding.path) == "auto":
            return True
        if finding.code == "ZRO011":
            return False  # an old name beside the new one: DeepSpeed refuses both together
        if finding.code == "KEY001" and finding.path in renamed:
            return True
        if finding.code in _UNKNOWN:
            # What the lint would rename is a slip of the pen: somebody meant another key.
            return finding.path in imported.ignored and not finding.fix
        if finding.code.startswith("KEY"):
            return False
        return any(finding.path == path or finding.path.startswith(f"{path}.") for path in left_out)

    return tuple(each for each in findings if each.severity is Severity.ERROR and not settled_here(each))


_SETTLED = {"AUT001", "AUT002", "BAT004", "KEY005", "OFF004", "REA002", "REA006"}
"""Codes of findings that are not true of the recipe: auto, no batch size, old names, how the file is written."""

_UNKNOWN = {"KEY001", "KEY008", "KEY010"}
"""Codes of findings about keys that DeepSpeed does not know and that nobody would look for elsewhere."""

_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_DEFAULT_RANKS = 8
_LISTED_HOSTS = 16
_STEPS = 1000
_MICRO = 8
"""The micro batch of transformers' TrainingArguments (training_args.py, per_device_train_batch_size)."""


def _parallel(rest: Config, notes: Notes) -> dict[str, int]:
    tensor = taken(rest, "tensor_parallel")
    size = whole(tensor.pop("autotp_size", None)) or 1
    if tensor:
        rest["tensor_parallel"] = tensor
    return {"tensor": size, "sequence": whole(rest.pop("sequence_parallel_size", None)) or 1}


def _batch(
    said: Mapping[str, Any], shards: Mapping[str, int], job: Job, around: Surroundings, notes: Notes
) -> tuple[Config, int, RankSource]:
    """The batch section, and the number of ranks of the job with where it comes from.

    What is not said follows as in DeepSpeed (runtime/config.py, _set_batch_related_parameters).
    """
    total, micro, accumulation = (whole(said[name]) for name in _BATCH)
    split = shards["tensor"] * shards["sequence"]
    ranks, source = _ranks(total, micro, accumulation, split, job, around)
    fields: Config = {"sequence_length": job.sequence_length}
    if job.sequence_length is None:
        limit = job.architecture.max_position_embeddings if job.architecture else None
        length = min(2048, limit or 2048)
        fields["sequence_length"] = notes.fill_in("batch.sequence_length", length, "tokens in one sequence")
    if micro is None and total is None:
        if notes.auto(_BATCH[1]):
            micro = notes.decided(_BATCH[1], "batch.micro", _MICRO, "transformers' default")
        else:
            micro = notes.fill_in("batch.micro", 1, "sequences per rank and forward pass; the config says none")
    if micro is not None:
        fields["micro"] = micro
    if accumulation is None and (micro is None or total is None):
        accumulation = 1
        if notes.auto(_BATCH[2]):
            notes.decided(_BATCH[2], "batch.accumulation", accumulation, "transformers' default")
    if accumulation is not None:
        fields["accumulation"] = accumulation
    if total is not None:
        fields["global"] = total
    for name in _BATCH:
        notes.derived(name, "it follows from the other batch sizes and the number of ranks")
    return fields, ranks, source


def _ranks(
    total: int | None, micro: int | None, accumulation: int | None, split: int, job: Job, said: Surroundings
) -> tuple[int, RankSource]:
    if job.world_size is not None:
        return job.world_size, "said"
    if total and micro and accumulation and total % (micro * accumulation) == 0:
        return total // (micro * accumulation) * split, "inferred"
    usual = said.per_node or (job.device.devices_per_server if job.device else _DEFAULT_RANKS)
    unit = (micro or 1) * (accumulation or 1)
    for parts in range(max(1, usual // split), 0, -1):
        if total is None or total % (parts * unit) == 0:
            return parts * split, "guessed"
    return split, "guessed"


def _length(scheduler: Config, said: Surroundings, notes: Notes) -> Config:
    total = whole(lookup(scheduler, "params.total_num_steps"))
    if said.steps is not None:
        return {"steps": said.steps}
    if total is not None:
        return {"steps": total}
    steps = max(_STEPS, 10 * (whole(lookup(scheduler, "params.warmup_num_steps")) or 0))
    return {"steps": notes.fill_in("length.steps", steps, "optimizer steps, or epochs, or tokens")}


def _clipping(rest: Config, recipe: Config, notes: Notes) -> None:
    path = "gradient_clipping"
    value = rest.pop(path, None)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        recipe[path] = max(value, 0)
    elif notes.auto(path):
        notes.derived(path, "1.0, as in transformers and dsgen")
    else:
        recipe[path] = notes.default(path, notes.default_of(path))


def _hardware(ranks: int, source: RankSource, job: Job, said: Surroundings, notes: Notes) -> Config:
    fields: Config = {"device": said.device or notes.fill_in("hardware.device", "DEVICE", "one of `dsgen devices`")}
    usual = job.device.devices_per_server if job.device else _DEFAULT_RANKS
    if job.device and job.device.kind == "cpu":
        usual = ranks
    per_node = said.per_node or next(size for size in range(min(usual, ranks), 0, -1) if ranks % size == 0)
    fields["per_node"] = per_node
    if source != "said" and said.per_node is None:
        why = "devices per node; " + (
            f"the batch sizes say {ranks} ranks" if source == "inferred" else "the config leaves them open"
        )
        notes.fill_in("hardware.per_node", per_node, why)
    nodes = max(1, ranks // per_node)
    fields["nodes"] = nodes
    if 1 < nodes <= _LISTED_HOSTS:
        fields["hosts"] = notes.fill_in("hardware.hosts", [f"node-{n + 1}" for n in range(nodes)], "the master first")
    elif nodes > 1:
        notes.remarks.append(Remark(kind="fill-in", path="hardware.hosts", text=f"the {nodes} hosts, the master first"))
    return fields


_PRESENCE = ("weight_quantization", "checkpoint.writer", "zero_optimization.zenflow")
"""Sections that do something by being there."""


def _raw(rest: Config, notes: Notes) -> Config:
    """What goes under `deepspeed:`: keys that do something and that no field of a recipe names."""
    out: Config = {}
    target = load_keys()
    for name, value in rest.items():
        if name in WITHOUT_EFFECT:
            notes.left_out(name, WITHOUT_EFFECT[name])
            continue
        switch = None if name in ("fp16", "bf16") else target.get(f"{name}.enabled")
        if switch is not None and isinstance(value, dict) and not truth(value.get("enabled", switch.default)):
            notes.left_out(name, "it is not enabled")
            continue
        for path, leaf in leaves({name: value}):
            key = target.get(path)
            if _is_default(key, leaf) and not path.startswith(_PRESENCE):
                if not isinstance(leaf, Mapping):
                    notes.same(path)
                continue
            here: Any = leaf
            for part in reversed(path.split(".")):
                here = {part: here}
            out = merged(out, here)
    return out


def _is_default(key: Key | None, value: Any) -> bool:
    if isinstance(value, Mapping):
        return not value
    return key is not None and key.has_default and value == key.default and type(value) is type(key.default)


def recipe_name(stem: str) -> str:
    """A name for the job from that of a file."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("._-")[:100]
    return name or "imported"
