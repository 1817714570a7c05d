"""What there is to say about an import, collected while it goes on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from dsgen.catalog.deepspeed_keys import Keys
from dsgen.documents.positions import Path
from dsgen.dsconfig.settled import Settled
from dsgen.rules.view import shown

FILL_IN = "please fill in"
"""What the comment on every placeholder starts with."""


@dataclass(frozen=True, kw_only=True)
class Remark:
    """One thing that the person should know."""

    kind: Literal["fill-in", "decided", "derived", "default", "renamed", "left-out", "same"]
    path: str
    """Of the recipe for a field to fill in or a default, else of the config."""
    text: str


@dataclass(kw_only=True)
class Notes:
    """Comments and remarks while they are collected."""

    settled: Settled
    source: Keys
    """The keys of the version that the config is for; what it leaves open has their defaults."""
    comments: dict[Path, str] = field(default_factory=dict)
    remarks: list[Remark] = field(default_factory=list)

    def fill_in(self, path: str, value: Any, why: str) -> Any:
        """A placeholder."""
        self.comments[tuple(path.split("."))] = f"{FILL_IN}: {why}"
        self.remarks.append(Remark(kind="fill-in", path=path, text=why))
        return value

    def decided(self, canonical: str, path: str, value: Any, why: str) -> Any:
        """A number for an `auto` that the script would have given: a placeholder too."""
        self.settled.autos.pop(canonical, None)
        self.comments[tuple(path.split("."))] = f"{FILL_IN}: auto in the config; {why}"
        words = self.settled.spelt(canonical)
        self.remarks.append(Remark(kind="decided", path=words, text=f"{path}: {value}: {why}"))
        return value

    def derived(self, canonical: str, why: str) -> None:
        """An `auto` that is left to dsgen, or to what has no need of it."""
        words = self.settled.autos.pop(canonical, None)
        if words is not None:
            self.remarks.append(Remark(kind="derived", path=words, text=why))

    def default(self, path: str, value: Any, why: str = "") -> Any:
        """DeepSpeed's default, written out because dsgen would take another value."""
        self.comments[tuple(path.split("."))] = why or "DeepSpeed's default"
        self.remarks.append(Remark(kind="default", path=path, text=shown(value)))
        return value

    def left_out(self, canonical: str, why: str) -> None:
        """A key without effect."""
        self.remarks.append(Remark(kind="left-out", path=self.settled.spelt(canonical), text=why))

    def same(self, canonical: str) -> None:
        """A key that says what is so without it."""
        self.remarks.append(Remark(kind="same", path=self.settled.spelt(canonical), text="DeepSpeed's default"))

    def auto(self, canonical: str) -> bool:
        """Whether the config leaves a key to somebody else."""
        return canonical in self.settled.autos

    def default_of(self, canonical: str) -> Any:
        """What DeepSpeed takes for a key that is not there."""
        key = self.source.get(canonical)
        return key.default if key is not None else None
