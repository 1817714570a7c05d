"""Training text and tokenizer."""

from __future__ import annotations

from collections.abc import Iterator

from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View

BYTE_TOKENS = 256
SUFFIXES = (".txt", ".jsonl", ".parquet")


@rule("DAT001")
def one_source(view: View) -> Iterator[Problem]:
    """Not exactly one of data.files and data.builtin is given.

    The training text is not decided then. With an `entrypoint` both may be left out: the script reads its own data.

    Example (recipe):
        data: {files: data/*.jsonl, builtin: python-topics}

    Instead:
        data: {files: data/*.jsonl}

    Since: dsgen 0.1
    """
    if not view.has_data:
        return
    if view.entrypoint is not None and view.data_files is None and view.data_builtin is None:
        return
    if (view.data_files is None) == (view.data_builtin is None):
        said = (
            "both files and builtin are given" if view.data_files is not None else "neither files nor builtin is given"
        )
        yield Problem(path="data", message=f"{said}: the training text is not decided", help="give exactly one")
    elif view.data_files is not None and not view.data_files:
        yield Problem(path="data.files", message="the list of files is empty", help="name at least one file")


@rule("DAT002")
def files_are_readable_kinds(view: View) -> Iterator[Problem]:
    """A data file of a kind that is not read.

    Read are .txt, .jsonl and .parquet. A glob whose ending is open is left to the run.

    Example (recipe):
        data: {files: data/train.csv}

    Instead:
        data: {files: data/train.jsonl}

    Since: dsgen 0.1
    """
    for index, name in enumerate(view.data_files or ()):
        base = name.replace("\\", "/").rpartition("/")[2]
        suffix = base[base.rfind(".") :] if "." in base else ""
        if not name.strip():
            yield Problem(path=f"data.files[{index}]", message="an empty name", help="name a file")
        elif suffix not in SUFFIXES and not set("*?[") & set(suffix or base):
            yield Problem(
                path=f"data.files[{index}]",
                message=f"{name!r} is of a kind that is not read" + (f" ({suffix})" if suffix else ""),
                help=f"use {', '.join(SUFFIXES)}; for all files of a folder write {name.rstrip('/')}/*.jsonl"
                if not suffix
                else f"use {', '.join(SUFFIXES)}",
            )


@rule("DAT003")
def source_has_prompts_and_answers(view: View) -> Iterator[Problem]:
    """Text without prompts and answers in a training on answers.

    `mode: instruction` trains on the answers alone; the built-in text and .txt files have none.

    Example (recipe):
        data: {files: data/train.txt, mode: instruction}

    Instead:
        data: {files: data/train.jsonl, mode: instruction}

    Since: dsgen 0.1
    """
    if view.data_mode != "instruction":
        return
    if view.data_builtin is not None:
        yield Problem(
            path="data.mode",
            message="the built-in text has no prompts and answers",
            help="write packed, or give files with prompts and answers",
        )
    for index, name in enumerate(view.data_files or ()):
        if name.endswith(".txt"):
            yield Problem(
                path=f"data.files[{index}]",
                message=f"{name!r}: a .txt file has no prompts and answers",
                help="give .jsonl or .parquet files, or write `mode: packed`",
            )


@rule("DAT004")
def bytes_fit_the_vocabulary(view: View) -> Iterator[Problem]:
    """A vocabulary that is too small for byte tokens.

    Byte tokens need 256 ids; a smaller vocabulary would index past the embedding.

    Example (recipe):
        batch: {sequence_length: 16, micro: 1, global: 64}
        tokenizer: bytes
        model:
          model_type: llama
          hidden_size: 64
          intermediate_size: 96
          num_hidden_layers: 2
          num_attention_heads: 4
          vocab_size: 200

    Instead:
        batch: {sequence_length: 16, micro: 1, global: 64}
        tokenizer: bytes
        model:
          model_type: llama
          hidden_size: 64
          intermediate_size: 96
          num_hidden_layers: 2
          num_attention_heads: 4
          vocab_size: 257

    Since: dsgen 0.1
    """
    if view.tokenizer != "bytes" or view.architecture is None:
        return
    if view.architecture.vocabulary_size < BYTE_TOKENS:
        yield Problem(
            path="tokenizer",
            message=f"byte tokens need a vocabulary of {BYTE_TOKENS}, {view.architecture.name} has "
            f"{view.architecture.vocabulary_size}",
            help=f"give the model a vocab_size of at least {BYTE_TOKENS}",
        )


@rule("DAT005")
def named_fields_are_read(view: View) -> Iterator[Problem]:
    """The name of a field that no row is asked for.

    It does nothing in this mode or with this text: `field` is read by the modes that train on plain text,
    `prompt_field` and `answer_field` by `mode: instruction`, none by the built-in text.

    Example (recipe):
        data: {files: data/train.jsonl, prompt_field: question}

    Instead:
        data: {files: data/train.jsonl, mode: instruction, prompt_field: question}

    Since: dsgen 0.1
    """
    read = {"prompt_field", "answer_field"} if view.data_mode == "instruction" else {"field"}
    if view.data_builtin is not None:
        read = set()
    for name in view.data_said:
        if name in ("field", "prompt_field", "answer_field") and name not in read and view.data_mode is not None:
            why = "the built-in text has no fields" if view.data_builtin else f"mode {view.data_mode} does not read it"
            yield Problem(path=f"data.{name}", message=f"{name} does nothing: {why}", help="remove it", on_key=True)
