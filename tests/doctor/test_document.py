"""docs/doctor.md says what the code does."""

from __future__ import annotations

import re

from dsgen.doctor import nvidia_smi
from dsgen.doctor.check import State
from dsgen.doctor.examine import THEMES

from ..conftest import REPOSITORY

TEXT = (REPOSITORY / "docs" / "doctor.md").read_text()


def test_every_check_has_its_line() -> None:
    table = TEXT[TEXT.index("| name | what |") : TEXT.index("`--quick` leaves out")]
    documented = set(re.findall(r"`([a-z_]+(?:\.[a-z_*]+)?)`", "".join(re.findall(r"^\|(.*?)\|", table, re.MULTILINE))))
    source = "".join(path.read_text() for path in (REPOSITORY / "dsgen" / "doctor").glob("*.py"))
    said = set(re.findall(r'"((?:' + "|".join(theme.name for theme in THEMES) + r'|limits)\.[a-z_]+)"', source))
    files = {name for name in said if re.search(r"\.(txt|max|current|stat|limit_in_bytes|usage_in_bytes)$", name)}
    said = {name for name in said - files if not name.startswith("packages.")}
    assert len(said) > 25
    assert said <= documented
    single = {"python", "packages.*", "accelerator", "mask", "shared_memory", "disk"}
    assert documented - said == single
    assert {state.value for state in State} <= set(re.findall(r"^\| `([a-z ]+)` \|", TEXT, re.MULTILINE))


def test_what_is_to_be_captured_is_what_is_asked_for() -> None:
    assert f"# {' '.join(nvidia_smi.DEVICES)}\n" in TEXT
    assert f"# {' '.join(nvidia_smi.PROCESSES)}\n" in TEXT
