"""A config of accelerate: what it says itself, and the ds_config that accelerate makes of it or finds in a file."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Any

from dsgen.documents.document import Document
from dsgen.documents.errors import DocumentError
from dsgen.documents.json_reader import read_json_bytes
from dsgen.documents.notes import Note
from dsgen.documents.positions import Path, Position, dotted, undotted
from dsgen.documents.yaml_reader import decode, read_bytes
from dsgen.dsconfig.job import Job
from dsgen.dsconfig.view import dsconfig_view, whole
from dsgen.findings import Finding, Severity
from dsgen.rules.accelerate import SECTION, config_file_of, hostfile_of, section_of, stage_of, uses_deepspeed
from dsgen.rules.registry import FAMILIES, run_rules
from dsgen.rules.view import Neutral, View

_TRANSLATED = tuple(name for name in FAMILIES if name not in ("reading", "auto", "versions", "advice"))
"""Families for a ds_config that accelerate makes: what it fills in itself, and what its few keys cannot say, are no
findings about the file."""

_SAID = ("OFF010",)
"""Codes of findings in such a config that accelerate's own rules explain: that NVMe has no folder."""

_WORDS: Mapping[Path, Path] = {
    ("zero_optimization", "stage"): (SECTION, "zero_stage"),
    ("zero_optimization", "offload_optimizer"): (SECTION, "offload_optimizer_device"),
    ("zero_optimization", "offload_optimizer", "nvme_path"): (SECTION, "offload_optimizer_nvme_path"),
    ("zero_optimization", "offload_param"): (SECTION, "offload_param_device"),
    ("zero_optimization", "offload_param", "nvme_path"): (SECTION, "offload_param_nvme_path"),
    ("zero_optimization", "stage3_gather_16bit_weights_on_model_save"): (SECTION, "zero3_save_16bit_model"),
    ("gradient_accumulation_steps",): (SECTION, "gradient_accumulation_steps"),
    ("gradient_clipping",): (SECTION, "gradient_clipping"),
    ("fp16",): ("mixed_precision",),
    ("bf16",): ("mixed_precision",),
    ("precision",): ("mixed_precision",),
}
"""Beginning of a path in ds_config.json -> where accelerate says it."""

_YAML_1_1_FALSE = ("no", "No", "NO", "off", "Off", "OFF")


def accelerate_findings(document: Document, job: Job) -> tuple[tuple[Finding, ...], Mapping[str, str]]:
    """Findings about an accelerate config, and the text of every file that they point into.

    Where it starts DeepSpeed, the rules for a ds_config run on the one that accelerate would make of it, or on the file
    that it names; that one is looked for from the current folder, as accelerate does, then from the config's own. So is
    the hostfile, where the launcher gets it.
    """
    said: Mapping[str, Any] = document.value
    processes = whole(said.get("num_processes"))
    job = replace(job, framework="transformers", world_size=job.world_size or processes)
    found: list[Finding] = []
    sources = dict(document.sources)
    notes = [*document.notes, *_unquoted_no(document)]
    inline: Mapping[str, Any] | None = None
    name = config_file_of(said)
    if uses_deepspeed(said) and name is not None:
        inline = _inline(name)
        path = _found(name, document.file)
        if inline is None and path is None:
            place: Path = (SECTION, "deepspeed_config_file")
            notes.append(Note("missing-file", document.at(place), place, name))
        elif path is not None:
            other, more = _lint_file(path, job)
            found.extend(more)
            sources.update(other.sources if other else {})
    elif uses_deepspeed(said) and isinstance(said.get(SECTION, {}) or {}, Mapping):
        view = _translated_view(document, job)
        found.extend(replace(each, fix=()) for each in run_rules(view, _TRANSLATED) if each.code not in _SAID)
    hosts = hostfile_of(said)
    if hosts is not None:
        path = _found(hosts, document.file)
        if path is None:
            place = (SECTION, "deepspeed_hostfile")
            notes.append(Note("missing-hostfile", document.at(place), place, hosts))
        else:
            lines, more = _lint_hostfile(path)
            found.extend(more)
            sources.update(lines.sources if lines else {})
    own = run_rules(_own_view(document, job, tuple(notes), inline), ("accelerate",))
    return (*own, *found), sources


def accelerates_config(said: Mapping[str, Any]) -> dict[str, Any]:
    """The ds_config that accelerate 1.15 makes of its own settings (utils/dataclasses.py, DeepSpeedPlugin).

    `auto` stands for what the script decides. Settings that accelerate cannot read are left out, and so is what it adds
    that changes nothing.
    """
    section = section_of(said)
    stage = stage_of(said)
    zero: dict[str, Any] = {"stage": 2 if stage is None else stage}
    for name in ("offload_optimizer", "offload_param"):
        device = section.get(f"{name}_device")
        if device is not None:
            zero[name] = {"device": str(device).lower()}
            if zero[name]["device"] == "nvme":
                zero[name]["nvme_path"] = "none"  # the launcher does not hand the folder on
    if zero["stage"] == 3 and str(section.get("zero3_save_16bit_model")).lower() == "true":
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": _number(section.get("gradient_accumulation_steps"), int),
        "gradient_clipping": _number(section.get("gradient_clipping"), float),
        "zero_optimization": zero,
        **_precision(said.get("mixed_precision")),
    }


def _number(value: Any, kind: type[int] | type[float]) -> Any:
    try:
        return "auto" if value is None or isinstance(value, bool) else kind(str(value))
    except ValueError:
        return "auto"


def _precision(value: Any) -> dict[str, Any]:
    """Without a word of it the script decides: transformers' Trainer by its own arguments."""
    if value is None:
        return {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}
    word = str(value).lower()
    return {"fp16": {"enabled": word == "fp16"}, "bf16": {"enabled": word in ("bf16", "fp8")}}


def _translated_view(document: Document, job: Job) -> View:
    def words(path: Neutral) -> Path:
        neutral = undotted(path) if isinstance(path, str) else path
        for end in range(len(neutral), 0, -1):
            if neutral[:end] in _WORDS:
                return _WORDS[neutral[:end]]
        return (SECTION,)

    def locate(path: Neutral, *, key: bool = False) -> Position:
        return document.at_key(words(path)) if key else document.at(words(path))

    def spell(path: Neutral) -> str:
        return dotted(words(path))

    config = Document(file=document.file, value=accelerates_config(document.value))
    return replace(dsconfig_view(config, job), locate=locate, spell=spell)


def _own_view(document: Document, job: Job, notes: tuple[Note, ...], inline: Mapping[str, Any] | None) -> View:
    def locate(path: Neutral, *, key: bool = False) -> Position:
        neutral = undotted(path) if isinstance(path, str) else path
        return document.at_key(neutral) if key else document.at(neutral)

    def spell(path: Neutral) -> str:
        return path if isinstance(path, str) else dotted(path)

    return View(
        locate=locate,
        spell=spell,
        kind="accelerate",
        file=document.file,
        deepspeed=job.deepspeed,
        framework="transformers",
        notes=notes,
        accelerate=document.value,
        accelerate_inline=inline,
    )


def _lint_file(path: FilePath, job: Job) -> tuple[Document | None, tuple[Finding, ...]]:
    try:
        document = read_json_bytes(read_bytes(path), str(path))
    except DocumentError as error:
        return None, (_unreadable(error),)
    if not isinstance(document.value, Mapping):
        note = Note("no-mapping", document.at(()), ())
        document = replace(document, value={}, notes=(note,))
        return document, tuple(run_rules(dsconfig_view(document, job), ("reading",)))
    return document, tuple(run_rules(dsconfig_view(document, job)))


def _lint_hostfile(path: FilePath) -> tuple[Document | None, tuple[Finding, ...]]:
    try:
        text = decode(read_bytes(path), str(path))
    except DocumentError as error:
        return None, (_unreadable(error),)
    document = Document(file=str(path), value=None, sources={str(path): text})

    def locate(path: Neutral, *, key: bool = False) -> Position:
        index = path[0] if path and not isinstance(path, str) else 0
        return Position(document.file, int(index) + 1, 1)

    def spell(path: Neutral) -> str:
        return f"line {locate(path).line}"

    lines = tuple(line.removesuffix("\n") for line in io.StringIO(text, newline=None))
    view = View(locate=locate, spell=spell, kind="hostfile", file=document.file, lines=lines)
    return document, tuple(run_rules(view, ("hostfile",)))


def _unreadable(error: DocumentError) -> Finding:
    return Finding(
        code="DOC001", severity=Severity.ERROR, message=error.message, position=error.position, help=error.help
    )


def _found(name: str, file: str) -> FilePath | None:
    for path in (FilePath(name), FilePath(file).parent / name):
        try:
            if path.exists():
                return path
        except (OSError, ValueError):
            return None
    return None


def _inline(text: str) -> Mapping[str, Any] | None:
    """A ds_config that stands in place of the file's name: JSON, or JSON in base64, as accelerate takes it."""
    for decoded in (text, _from_base64(text)):
        try:
            value = json.loads(decoded)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            return value
    return None


def _from_base64(text: str) -> str:
    try:
        return base64.urlsafe_b64decode(text).decode("utf-8")
    except ValueError:
        return ""


def _unquoted_no(document: Document) -> tuple[Note, ...]:
    """Whether mixed_precision is a word that accelerate's reader, which is for YAML 1.1, takes for false."""
    path: Path = ("mixed_precision",)
    span = document.spans.get(path)
    text = document.sources.get(document.file, "")
    if span is None or text[span[0] : span[1]] not in _YAML_1_1_FALSE:
        return ()
    return (Note("unquoted-no", document.at(path), path),)
