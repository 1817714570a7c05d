"""The codes of findings that no rule makes: reading and typing documents, and comments.

Their documentation has the form of a rule's docstring (see `documentation`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dsgen.findings import Severity


@dataclass(frozen=True, kw_only=True)
class Other:
    """A code that no rule makes."""

    family: str
    severity: Severity
    documentation: str


OTHER_FAMILIES: Mapping[str, str] = {
    "documents": "Files that cannot be read.",
    "comments": "Comments that leave findings out.",
    "recipe": "Fields of a recipe: known, there, of the right type, and naming what exists.",
}
"""Family -> what its codes are about."""


def _other(family: str, documentation: str, severity: Severity = Severity.ERROR) -> Other:
    return Other(family=family, severity=severity, documentation=documentation)


OTHER_CODES: Mapping[str, Other] = {
    "DOC001": _other(
        "documents",
        """A file that cannot be read.

        It is missing, is no regular file, is too large, is not UTF-8, or its text is neither JSON nor what DeepSpeed's
        hjson takes (a recipe: no YAML 1.2 with keys that stand once). DeepSpeed would stop at it as well, often with an
        error that names the end of the file. Nothing else can be said of such a file, so this finding cannot be left
        out, and `dsgen lint` ends with exit code 2.

        Example:
            # whole file
            {
              "train_micro_batch_size_per_gpu": 1,
              "bf16": {"enabled": true

        Instead:
            # whole file
            {
              "train_micro_batch_size_per_gpu": 1,
              "bf16": {"enabled": true}
            }

        Since: DeepSpeed 0.14
        """,
    ),
    "SUP001": _other(
        "comments",
        """A comment that leaves no finding out.

        `# dsgen: ignore[CODE]` behind a value leaves out the findings of its line, on a line of its own those of the
        next; `# dsgen: ignore-file[CODE]` those of the file. One that names no code is not obeyed, since it would hide
        what nobody has thought of; one whose code is not found there (any more) is left over, and would hide the next
        finding of that code: an info.

        Example (recipe):
            seed: 1  # dsgen: ignore

        Instead:
            seed: 1

        Since: dsgen 0.2
        """,
        Severity.WARNING,
    ),
    "REC001": _other(
        "recipe",
        """A field that recipes do not have.

        Left alone it would do nothing, and the job would train with the default. Sections that hold DeepSpeed's own
        keys (`zero`, `deepspeed`) say KEY001 instead. docs/recipe.md lists the fields.

        Example (recipe):
            batch: {sequence_length: 2048, micro: 1, globl: 64}

        Instead:
            batch: {sequence_length: 2048, micro: 1, global: 64}

        Since: dsgen 0.1
        """,
    ),
    "REC002": _other(
        "recipe",
        """A value of a type, range or set that a field of the recipe does not take.

        Types are strict: `'2'` is text and no number, `true` is no number either. Counts take units (`2M`), sizes take
        theirs (`64GiB`), durations (`30min`) and parts (`10%`). docs/recipe.md says what each field takes.

        Example (recipe):
            zero: {stage: 4}

        Instead:
            zero: {stage: 3}

        Since: dsgen 0.1
        """,
    ),
    "REC003": _other(
        "recipe",
        """A field that has to be there is missing.

        dsgen decides what it can decide by itself; this it cannot know.

        Example (recipe):
            zero: {overlap_comm: true}

        Instead:
            zero: {stage: 2, overlap_comm: true}

        Since: dsgen 0.1
        """,
    ),
    "REC004": _other(
        "recipe",
        """A model that is not found.

        `model` is a preset (`dsgen models` lists them), a size such as 7b, a path that starts with `./`, `../`, `/` or
        `~`, or ends in `.json`, or the fields of a config.json. A path leads to a config.json or the folder of one, and
        counts from the recipe's folder. Nothing is looked up on a hub: checking a recipe needs no network.

        Example (recipe):
            model: llama2-7b

        Instead:
            model: llama-2-7b

        Since: dsgen 0.1
        """,
    ),
    "REC005": _other(
        "recipe",
        """A field of the model's config that no model can have.

        The parameters are counted from these fields, and the batch, memory and schedule follow from the count, so a
        field that is missing, of a wrong type or not finite cannot be passed over.

        Example (recipe):
            model:
              model_type: llama
              hidden_size: 64.5
              intermediate_size: 96
              num_hidden_layers: 2
              num_attention_heads: 4
              vocab_size: 300

        Instead:
            model:
              model_type: llama
              hidden_size: 64
              intermediate_size: 96
              num_hidden_layers: 2
              num_attention_heads: 4
              vocab_size: 300

        Since: dsgen 0.1
        """,
    ),
    "REC006": _other(
        "recipe",
        """A device that is not in the catalogue.

        `dsgen devices` lists the names. The names of Ascend parts are easily mixed up: a plain 910B is of the first
        family, without bf16; 910B1 to 910B4 are of the second.

        Example (recipe):
            hardware: {device: ascend-910b9, per_node: 8}

        Instead:
            hardware: {device: ascend-910b3-64g, per_node: 8}

        Since: dsgen 0.1
        """,
    ),
}
"""Code -> what it is, by family."""
