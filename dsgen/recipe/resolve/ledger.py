"""Noting decisions while they are made."""

from __future__ import annotations

from typing import TypeVar

from dsgen.recipe.plan import Decision

T = TypeVar("T")

SAID = "the recipe says so"


class Ledger:
    """Decisions in the order in which they were made, one per path; a later one replaces an earlier one."""

    def __init__(self) -> None:
        self._decisions: dict[str, Decision] = {}

    def note(self, path: str, value: T, reason: str) -> T:
        """Note a decision and return its value."""
        self._decisions[path] = Decision(path=path, value=value, reason=reason)
        return value

    def choose(self, path: str, said: T | None, derived: T, reason: str) -> T:
        """What the recipe says, else the derived value with its reason."""
        return self.note(path, derived, reason) if said is None else self.note(path, said, SAID)

    def decisions(self) -> tuple[Decision, ...]:
        """All decisions."""
        return tuple(self._decisions.values())
