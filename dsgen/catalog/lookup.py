"""Looking a name up: what to say when it is not there."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnknownName(ValueError):
    """A name that the catalog does not hold; `suggestions` are the nearest ones that it does, best first."""

    kind = "name"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.suggestions = nearest(name, known)
        hint = f"; did you mean {' or '.join(self.suggestions)}?" if self.suggestions else ""
        super().__init__(f"unknown {self.kind} {name!r}{hint}")


def nearest(name: str, known: Iterable[str], count: int = 3) -> tuple[str, ...]:
    """The known names most like `name`, best first; a name that contains it counts as alike."""
    wanted = name.strip().lower()
    matcher = difflib.SequenceMatcher(b=wanted)
    scored = []
    for candidate in sorted(set(known)):
        matcher.set_seq1(candidate.lower())
        likeness = matcher.ratio()
        if len(wanted) > 1 and wanted in candidate.lower():
            likeness = 0.6 + 0.4 * likeness
        scored.append((likeness, candidate))
    alike = sorted((pair for pair in scored if pair[0] >= 0.6), key=lambda pair: -pair[0])
    return tuple(candidate for _, candidate in alike[:count])


def alike(name: str, other: str) -> bool:
    """Whether one name can only be a misspelling of the other, so that it may be changed without asking."""
    return difflib.SequenceMatcher(None, name.lower(), other.lower()).ratio() >= 0.85
