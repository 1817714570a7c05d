"""How the text of a config reads: what strict JSON readers refuse, and what hjson takes for something else."""

from __future__ import annotations

from collections.abc import Iterator

from dsgen.documents.json_mistakes import KINDS, explained
from dsgen.documents.notes import Note
from dsgen.documents.positions import dotted
from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View

_DEPARTURES = {
    "comment": "a comment",
    "trailing-comma": "a comma before the closing bracket",
    "missing-comma": "a missing comma",
    "unquoted-key": "a key without quotes",
    "unquoted-text": "text without quotes",
    "single-quotes": "text in single quotes",
    "multiline-text": "text over several lines",
    "no-root-braces": "no braces around the whole",
    "escape": "an escape that JSON does not have",
}
"""Kinds of notes that hjson takes and JSON does not."""


@rule("REA001")
def keys_stand_once(view: View) -> Iterator[Problem]:
    """A key that stands twice in one section.

    DeepSpeed refuses the file (ValueError "Duplicate keys in DeepSpeed config", runtime/config_utils.py); a trainer
    that reads with json.load takes the last of the two without a word.

    Example:
        # whole file
        {
          "train_micro_batch_size_per_gpu": 1,
          "zero_optimization": {"stage": 2},
          "zero_optimization": {"stage": 3}
        }

    Instead:
        # whole file
        {
          "train_micro_batch_size_per_gpu": 1,
          "zero_optimization": {"stage": 3}
        }

    Since: DeepSpeed 0.14
    """
    for note in _notes(view, "duplicate-key"):
        yield Problem(
            path=note.path,
            position=note.position,
            message=f"{dotted(note.path)} stands twice: DeepSpeed refuses the file, json.load takes the last one",
            help="remove one of the two",
        )


@rule("REA002", Severity.INFO)
def text_is_json(view: View) -> Iterator[Problem]:
    """A file that is not JSON, though DeepSpeed's own reader takes it.

    DeepSpeed reads with hjson: comments, trailing commas and unquoted text are fine. transformers and accelerate read
    with json.load and stop at the first of them, so for these (`--framework transformers`, or `auto` in the file) it is
    an error. Text without quotes is a warning in any case: hjson takes the rest of the line for it. Only one place in a
    file is told, and a file whose name ends in `.hjson` is taken at its word.

    Example:
        # whole file
        {
          "train_micro_batch_size_per_gpu": 1,  // of each device
          "bf16": {"enabled": true}
        }

    Instead:
        # whole file
        {
          "train_micro_batch_size_per_gpu": 1,
          "bf16": {"enabled": true}
        }

    Since: DeepSpeed 0.14
    """
    refused = view.framework == "transformers"
    if view.file.endswith(".hjson") and not refused:
        return
    mistaken = {note.path for note in _notes(view, *KINDS)}
    notes = sorted(
        (note for note in _notes(view, *_DEPARTURES) if note.path not in mistaken),
        key=lambda note: note.kind != "unquoted-text",
    )
    for note in notes[:1]:
        usual = Severity.WARNING if note.kind == "unquoted-text" else None
        yield Problem(
            path=note.path,
            position=note.position,
            message=f"{_DEPARTURES[note.kind]}: "
            + ("json.load, which transformers reads with, stops here" if refused else "hjson takes it, JSON does not"),
            help="write plain JSON, so that every reader takes the file",
            severity=Severity.ERROR if refused else usual,
        )


@rule("REA003", Severity.WARNING)
def unquoted_text_ends_where_meant(view: View) -> Iterator[Problem]:
    """Text without quotes that runs on to the end of its line.

    hjson takes everything up to the line break as the text: the comma, the brace and the comment behind it too.
    Python's True, False and None are such text as well, and no constants.

    Example:
        # whole file
        {
          "train_micro_batch_size_per_gpu": 1,
          "optimizer": {
            "type": AdamW,
            "params": {"lr": 1e-5}
          }
        }

    Instead:
        # whole file
        {
          "train_micro_batch_size_per_gpu": 1,
          "optimizer": {
            "type": "AdamW",
            "params": {"lr": 1e-5}
          }
        }

    Since: DeepSpeed 0.14
    """
    mistaken = {note.path for note in _notes(view, *KINDS)}
    for note in _notes(view, "unquoted-text"):
        if note.path not in mistaken and _runs_on(note.detail):
            constant = _CONSTANTS.get(note.detail.rstrip(" ,}]"))
            yield Problem(
                path=note.path,
                position=note.position,
                message=f"hjson reads the rest of the line as text: {note.detail[:60]!r}",
                help=f"write {constant}" if constant else "put the text in quotes",
            )


_CONSTANTS = {"True": "true", "False": "false", "None": "null", "TRUE": "true", "FALSE": "false", "NULL": "null"}


@rule("REA004")
def numbers_are_finite(view: View) -> Iterator[Problem]:
    """A number that is not finite: NaN or Infinity.

    JSON has no such numbers. hjson reads them as text, json.load as a number that no setting means.

    Example:
        # whole file
        {
          "train_micro_batch_size_per_gpu": 1,
          "gradient_clipping": Infinity
        }

    Instead:
        # whole file
        {
          "train_micro_batch_size_per_gpu": 1,
          "gradient_clipping": 0.0
        }

    Since: DeepSpeed 0.14
    """
    for note in _notes(view, "not-finite"):
        yield Problem(
            path=note.path,
            position=note.position,
            message=f"{note.detail or 'the number'} is not finite: no setting of DeepSpeed means that",
            help="write a number",
        )


@rule("REA005", Severity.WARNING)
def file_says_something(view: View) -> Iterator[Problem]:
    """A file without any content.

    DeepSpeed reads it as an empty config, and misses the batch size in it. An empty file is most often one that was cut
    off while it was written or copied.

    Example:
        # whole file
        // to be written

    Instead:
        # whole file
        {
          "train_micro_batch_size_per_gpu": 1,
          "bf16": {"enabled": true}
        }

    Since: DeepSpeed 0.14
    """
    for note in _notes(view, "empty"):
        yield Problem(
            path=note.path,
            position=note.position,
            message="the file is empty: every setting has its default",
            help="write a config",
        )


@rule("REA006", Severity.INFO)
def file_starts_with_its_text(view: View) -> Iterator[Problem]:
    """A byte order mark before the text.

    hjson skips it, json.load refuses it ("Unexpected UTF-8 BOM"), so for transformers and accelerate it is an error.
    Some editors write it on Windows, unseen.

    Example:
        # whole file
        \ufeff{"train_micro_batch_size_per_gpu": 1}

    Instead:
        # whole file
        {"train_micro_batch_size_per_gpu": 1}

    Since: DeepSpeed 0.14
    """
    for note in _notes(view, "bom"):
        yield Problem(
            path=note.path,
            position=note.position,
            message="the file starts with a byte order mark, which json.load refuses",
            help="save it as UTF-8 without one",
            severity=Severity.ERROR if view.framework == "transformers" else None,
        )


@rule("REA007")
def config_is_a_mapping(view: View) -> Iterator[Problem]:
    """A config that is no mapping at its top.

    DeepSpeed looks keys up in it and fails with an AttributeError (runtime/config.py).

    Example:
        # whole file
        [{"train_micro_batch_size_per_gpu": 1}]

    Instead:
        # whole file
        {"train_micro_batch_size_per_gpu": 1}

    Since: DeepSpeed 0.14
    """
    for note in _notes(view, "no-mapping"):
        yield Problem(
            path=note.path,
            position=note.position,
            message="holds no mapping at its top: DeepSpeed fails with an AttributeError",
            help='start the config with `{`: {"train_micro_batch_size_per_gpu": 1, ...}',
        )


@rule("REA008", Severity.WARNING)
def config_is_read_as_written(view: View) -> Iterator[Problem]:
    """A ds_config in YAML.

    DeepSpeed reads a file of any name with hjson (runtime/config.py, DeepSpeedConfig), which refuses most of YAML or
    takes it for something else: a section becomes the text of the line below it. transformers and accelerate read with
    json.load and stop: an error there. Only a program that reads the YAML itself and hands over a dict can use it. YAML
    that is JSON at the same time is fine.

    Example (yaml):
        train_micro_batch_size_per_gpu: 1
        zero_optimization:
          stage: 2

    Instead:
        {"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}}

    Since: DeepSpeed 0.14
    """
    for note in _notes(view, "yaml"):
        if note.detail == "same" and view.framework != "transformers":
            continue
        effect = (
            "json.load, which transformers and accelerate read with, refuses it"
            if view.framework == "transformers"
            else "hjson refuses it"
            if note.detail == "refused"
            else "hjson takes it for something else"
        )
        yield Problem(
            path=note.path,
            position=note.position,
            message=f"DeepSpeed reads this as hjson, not as YAML: {effect}",
            help="write it as JSON, into a file ds_config.json",
            severity=Severity.ERROR if view.framework == "transformers" else None,
        )


@rule("REA009", Severity.WARNING)
def text_means_what_it_says(view: View) -> Iterator[Problem]:
    """A character that only looks like one of JSON's, a template that nobody filled in, or a merge conflict.

    hjson takes full-width commas, typographic quotes, non-breaking spaces and `${NAME}` as part of a key or a text, so
    the file reads as something that nobody wrote.

    Example:
        # whole file
        {
          "train_micro_batch_size_per_gpu": ${BATCH_SIZE}
        }

    Instead:
        # whole file
        {
          "train_micro_batch_size_per_gpu": 1
        }

    Since: DeepSpeed 0.14
    """
    for note in _notes(view, *KINDS):
        message, help = explained(note.kind, note.detail)
        yield Problem(
            path=note.path,
            position=note.position,
            message=f"{message}: hjson reads it as part of a text or key",
            help=help,
        )


def _runs_on(text: str) -> bool:
    return any(mark in text for mark in ",:}]#") or "//" in text or text in _CONSTANTS


def _notes(view: View, *kinds: str) -> Iterator[Note]:
    return (note for note in view.notes if note.kind in kinds)
