"""Turning text into token ids."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from dsgen.resources import local_path
from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.settings import Settings

BYTES = "bytes"


class Tokenizer(Protocol):
    """What turns text into ids, and what it adds around a document."""

    size: int
    """Number of ids; every id is smaller."""
    prefix: tuple[int, ...]
    """Ids before every document (beginning of text), often none."""
    end: tuple[int, ...]
    """Ids after every document: end of text, or what stands for it."""
    fingerprint: str
    """Changes whenever the same text would give other ids."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, nothing added."""
        ...

    def vocabulary(self) -> dict[str, int]:
        """Tokens, as the tokenizer spells them, and their ids."""
        ...


class ByteTokenizer:
    """UTF-8 bytes as ids 0..255, and end of text as 256 where the model's vocabulary has room for it.

    A model with exactly 256 ids gets a pair of newlines between documents instead.
    """

    def __init__(self, vocabulary: int) -> None:
        self.size = 257 if vocabulary > 256 else 256
        self.prefix: tuple[int, ...] = ()
        self.end: tuple[int, ...] = (256,) if vocabulary > 256 else (10, 10)
        self.fingerprint = f"{BYTES}-{self.size}"

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The UTF-8 bytes of each text."""
        return [list(text.encode("utf-8")) for text in texts]

    def vocabulary(self) -> dict[str, int]:
        """Every byte in the spelling of byte-fallback tokenizers."""
        return {f"<0x{byte:02X}>": byte for byte in range(256)}


class HubTokenizer:
    """A tokenizer in the format of Hugging Face: a folder, a `tokenizer.json`, or a hub name."""

    def __init__(self, tokenizer: Any, source: str, end_of_text: int | None) -> None:
        self._tokenizer = tokenizer
        self.size = len(tokenizer)
        # What the tokenizer puts before an empty text is what it puts before every text; what it puts after
        # (end of text in some) is added by `end` once.
        beginning = tokenizer.bos_token_id
        added = tokenizer("")["input_ids"]
        self.prefix: tuple[int, ...] = (beginning,) if beginning is not None and beginning in added else ()
        end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else end_of_text
        if end is None:
            ids = self.encode(["\n\n"])[0]
            if not ids:
                raise RuntimeProblem(f"tokenizer {source} knows no end of text and no newline")
            self.end: tuple[int, ...] = tuple(ids)
        else:
            self.end = (end,)
        content = tokenizer.backend_tokenizer.to_str() if tokenizer.is_fast else json.dumps(tokenizer.get_vocab())
        self.fingerprint = hashlib.sha256(f"{content}{self.prefix}{self.end}".encode()).hexdigest()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, without special tokens."""
        ids = self._tokenizer(list(texts), add_special_tokens=False, return_attention_mask=False, verbose=False)
        return list(ids["input_ids"])

    def vocabulary(self) -> dict[str, int]:
        """All tokens of the tokenizer, added ones included."""
        vocabulary: dict[str, int] = self._tokenizer.get_vocab()
        return vocabulary


def load_tokenizer(settings: Settings, base_dir: Path, vocabulary: int, end_of_text: int | None) -> Tokenizer:
    """The tokenizer that the settings name; `vocabulary` is the number of ids that the model has.

    `end_of_text` is the model's own end-of-text id, for tokenizers that know none. The network is used only for a
    name that is no local path. Raises RuntimeProblem when it cannot be loaded, has ids that the model does not, or is
    another one than the weights were trained with, as far as their folder tells.
    """
    name = settings.data.tokenizer
    if name == BYTES:
        tokenizer: Tokenizer = ByteTokenizer(vocabulary)
    else:
        tokenizer = _load_hub_tokenizer(settings, base_dir, name, end_of_text)
    if tokenizer.size > vocabulary:
        raise RuntimeProblem(
            f"tokenizer {name} has {tokenizer.size} ids but the model's vocabulary has {vocabulary}: "
            "larger ids would fall outside the embedding",
            f"use the model's own tokenizer, or set the model's vocab_size to at least {tokenizer.size}",
        )
    _check_weights_know_it(settings, base_dir, tokenizer)
    return tokenizer


def _check_weights_know_it(settings: Settings, base_dir: Path, tokenizer: Tokenizer) -> None:
    """Compare with the tokenizer.json beside the weights, if there is one; added tokens are no difference."""
    weights = settings.model.weights
    if weights is None:
        return
    beside = local_path(base_dir, weights) / "tokenizer.json"
    if not beside.is_file():
        return
    from tokenizers import Tokenizer as Fast

    try:
        theirs = Fast.from_file(str(beside)).get_vocab()
    except Exception:
        # Nobody asked for this file: a broken one only takes away the comparison.
        return
    ours = tokenizer.vocabulary()
    same = sum(ours.get(token) == number for token, number in theirs.items())
    if 2 * same < min(len(theirs), len(ours)):
        raise RuntimeProblem(
            f"tokenizer {settings.data.tokenizer} is not that of the weights: it has {same} of {len(theirs)} tokens of "
            f"{beside} under the same id, so the model would read other words than it has learnt",
            f"write `tokenizer: {weights}`; to train these weights on other tokens on purpose, take {beside.name} away",
        )


def _load_hub_tokenizer(settings: Settings, base_dir: Path, name: str, end_of_text: int | None) -> HubTokenizer:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    path = local_path(base_dir, name)
    looks_local = name.startswith((".", "/", "~")) or name.endswith(".json")
    try:
        if path.is_file():
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
        elif path.is_dir() or looks_local:
            if not path.is_dir():
                raise RuntimeProblem(f"there is no tokenizer at {path}")
            tokenizer = AutoTokenizer.from_pretrained(
                str(path), local_files_only=True, trust_remote_code=settings.model.trust_remote_code
            )
        else:
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=settings.model.trust_remote_code)
    except RuntimeProblem:
        raise
    except Exception as error:
        raise RuntimeProblem(
            f"tokenizer {name} cannot be loaded: {error}",
            "it must be a folder or tokenizer.json that transformers reads, or the name of one on the hub",
        ) from error
    return HubTokenizer(tokenizer, name, end_of_text)
