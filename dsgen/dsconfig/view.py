"""A ds_config.json that somebody wrote, as rules see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsgen.catalog.deepspeed_keys import Keys, load_keys
from dsgen.catalog.parameters import count_parameters
from dsgen.documents.document import Document
from dsgen.documents.errors import DocumentError
from dsgen.documents.json_reader import read_json_text
from dsgen.documents.notes import Note
from dsgen.documents.positions import Path, Position, dotted, undotted
from dsgen.dsconfig.job import Job
from dsgen.dsconfig.kinds import is_yaml
from dsgen.findings import Edit
from dsgen.rules.auto import autos
from dsgen.rules.view import Neutral, View, dtype_named, lookup, truth

_SCALE_KEYS = ("loss_scale", "initial_scale_power", "loss_scale_window", "hysteresis", "min_loss_scale")


def dsconfig_view(document: Document, job: Job, base: Path = ()) -> View:
    """The view of the ds_config that stands at `base` of a document and is a mapping there.

    A value of a wrong type is left out of the typed fields: rules find it in `config`.
    """
    config: Mapping[str, Any] = document.value
    for part in base:
        config = config[part]  # type: ignore[index]
    keys = load_keys(job.deepspeed)
    spelling = _Spelling(document, keys, base)
    zero = config.get("zero_optimization")
    precision = _precision(config)
    optimizer, scheduler = _section(config, "optimizer"), _section(config, "scheduler")
    offload_optimizer, offload_parameters = _offload(zero)
    return View(
        locate=spelling.locate,
        spell=spelling.spell,
        edit=spelling.edit,
        kind="ds_config",
        file=document.file,
        deepspeed=job.deepspeed,
        framework=job.framework or ("transformers" if is_for_trainer(config, keys) else "native"),
        notes=(*document.notes, *_yaml_note(document, base)),
        client_optimizer=job.client_optimizer,
        config=config,
        stage=_stage(zero),
        offload_optimizer=offload_optimizer,
        offload_parameters=offload_parameters,
        precision=precision,
        accumulate=dtype_named(lookup(config, "data_types.grad_accum_dtype")),
        loss_scale=_loss_scale(config),
        scale_keys=tuple(name for name in _SCALE_KEYS if name in _section(config, "fp16"))
        if precision == "fp16"
        else (),
        micro_batch=whole(config.get("train_micro_batch_size_per_gpu")),
        accumulation=whole(config.get("gradient_accumulation_steps")),
        global_batch=whole(config.get("train_batch_size")),
        sequence_length=job.sequence_length,
        devices=job.world_size,
        tensor_parallel=whole(lookup(config, "tensor_parallel.autotp_size")) or None,
        sequence_parallel=whole(config.get("sequence_parallel_size")) or None,
        architecture=job.architecture,
        trainable_parameters=count_parameters(job.architecture).total if job.architecture else None,
        device=job.device,
        optimizer=_text(optimizer.get("type")),
        optimizer_parameters=_section(optimizer, "params"),
        schedule=_text(scheduler.get("type")),
        schedule_parameters=_section(scheduler, "params"),
    )


def _yaml_note(document: Document, base: Path) -> tuple[Note, ...]:
    """What readers of JSON make of a file in YAML: `refused`, `other` (another content) or `same`.

    None for a file that is JSON, or that no reader of a ds_config gets to see.
    """
    if base or not is_yaml(document.file):
        return ()
    try:
        read = read_json_text(document.sources.get(document.file, ""), document.file)
    except DocumentError:
        detail = "refused"
    else:
        detail = "same" if read.value == document.value else "other"
        if detail == "same" and not read.notes:
            return ()
    return (Note("yaml", document.at(()), (), detail),)


def is_for_trainer(config: Mapping[str, Any], keys: Keys) -> bool:
    """Whether `auto` stands anywhere in a config where DeepSpeed knows none of its own."""
    return next(autos(config, keys), None) is not None


def whole(value: Any) -> int | None:
    """A whole number of at least 1, also when it is written as 2.0, which DeepSpeed reads as 2 from a file."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 1 <= value < 2**63:
        return None
    return int(value) if value == int(value) else None


class _Spelling:
    """Neutral paths in the words of the document: keys stand under any of their names."""

    def __init__(self, document: Document, keys: Keys, base: Path) -> None:
        self.document, self.keys, self.base = document, keys, base

    def words(self, path: Neutral) -> Path:
        neutral = undotted(path) if isinstance(path, str) else path
        value: Any = self.document.value
        for part in self.base:
            value = value[part]
        out: Path = ()
        for index, part in enumerate(neutral):
            if isinstance(value, Mapping) and part not in value:
                wanted = self.keys.canonical(".".join(map(str, neutral[: index + 1])))
                section = ".".join(map(str, neutral[:index]))
                part = next(
                    (
                        name
                        for name in value
                        if "." not in name and self.keys.canonical(f"{section}.{name}" if section else name) == wanted
                    ),
                    part,
                )
            out = (*out, part)
            value = value.get(part) if isinstance(value, Mapping) else None
        return out

    def locate(self, path: Neutral, *, key: bool = False) -> Position:
        words = self.base + self.words(path)
        return self.document.at_key(words) if key else self.document.at(words)

    def spell(self, path: Neutral) -> str:
        return dotted(self.words(path))

    def edit(self, edit: Edit) -> Edit:
        """Edits name keys as the document does already; only the base is to be added."""
        return Edit(action=edit.action, path=self.base + edit.path, to=self.base + edit.to, value=edit.value)


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = config.get(name)
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value != "auto" else None


def _stage(zero: Any) -> int | None:
    """The stage that DeepSpeed takes (runtime/zero/config.py: a section that is just true means stage 1)."""
    if zero is None:
        return 0
    if isinstance(zero, bool):
        return int(zero)
    if not isinstance(zero, Mapping):
        return None
    stage = zero.get("stage", 0)
    if isinstance(stage, str) and stage.isdigit():
        stage = int(stage)
    return int(stage) if isinstance(stage, (int, float)) and stage in (0, 1, 2, 3) else None


def _offload(zero: Any) -> tuple[str | None, str | None]:
    """Where optimizer states and parameters go; the deprecated switches mean cpu."""
    if not isinstance(zero, Mapping):
        return None, None
    devices = []
    for name, old in (("offload_optimizer", "cpu_offload"), ("offload_param", "cpu_offload_param")):
        section = zero.get(name)
        if isinstance(section, Mapping):
            devices.append(_text(section.get("device", "none")))
        else:
            devices.append("cpu" if truth(zero.get(old)) else None)
    return devices[0], devices[1]


def _precision(config: Mapping[str, Any]) -> str | None:
    """fp16, bf16 or, with neither, fp32; None when a trainer decides or both are on."""
    enabled = {}
    for name, alias in (("fp16", None), ("bf16", "bfloat16")):
        section = config.get(name)
        if section is None and alias is not None:
            section = config.get(alias)
        value = section.get("enabled", False) if isinstance(section, Mapping) else False
        enabled[name] = value if value == "auto" else truth(value)
    if enabled["fp16"] is True and enabled["bf16"] is True:
        return None
    for name, on in enabled.items():
        if on is True:
            return name
    return "fp32" if set(enabled.values()) == {False} else None


def _loss_scale(config: Mapping[str, Any]) -> float | str | None:
    scale = _section(config, "fp16").get("loss_scale")
    if isinstance(scale, bool) or not isinstance(scale, (int, float)):
        return None
    return "dynamic" if scale == 0 else scale
