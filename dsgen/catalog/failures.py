"""What a failed run says, what that means, and what to do."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from dsgen.catalog.datafiles import read_yaml


@dataclass(frozen=True, kw_only=True)
class Failure:
    """A known failure that was recognised in a text."""

    code: str
    meaning: str
    help: str
    consequence: bool
    """Whether it is usually only what the failure of another rank did to this one."""


def recognise(text: str, *, simulated: bool = False) -> Failure | None:
    """The first known failure, in the order of the data file, that a message or a log tells of; `simulated`: it was
    said by a process on the simulated NPU."""
    for pattern, fields in _patterns():
        if fields.get("simulated") and not simulated:
            continue
        match = pattern.search(text)
        if match is not None:
            words = {name: value or "?" for name, value in match.groupdict().items()}
            return Failure(
                code=fields["code"],
                meaning=fields["meaning"].format(**words),
                help=fields["help"],
                consequence=bool(fields.get("consequence")),
            )
    return None


@functools.cache
def _patterns() -> tuple[tuple[re.Pattern[str], dict[str, str]], ...]:
    return tuple((re.compile(each["pattern"], re.DOTALL), each) for each in read_yaml("failures.yaml")["failures"])
