from __future__ import annotations

import pytest

from dsgen.documents.positions import Position
from dsgen.findings import Finding, Severity
from dsgen.rules.suppress import suppressed


def found(text: str, *places: tuple[str, int]) -> list[tuple[str, int]]:
    """Codes and lines of what is left of findings at some lines."""
    findings = [
        Finding(code=code, severity=Severity.ERROR, message="m", position=Position("f", line)) for code, line in places
    ]
    return [(finding.code, finding.position.line) for finding in suppressed(findings, text, "f")]


def test_a_comment_covers_its_line_and_its_codes() -> None:
    text = "a: 1\nb: 2  # dsgen: ignore[ZRO001]\nc: 3\n"
    assert found(text, ("ZRO001", 2), ("ZRO001", 3), ("KEY001", 2)) == [("ZRO001", 3), ("KEY001", 2)]


def test_several_codes() -> None:
    assert found("a: 1 # dsgen: ignore[ZRO001, KEY001]", ("ZRO001", 1), ("KEY001", 1)) == []


def test_a_line_of_its_own_covers_the_next_with_content() -> None:
    text = "# dsgen: ignore[ZRO001]\n\n# why\na: 1\nb: 1\n"
    assert found(text, ("ZRO001", 4), ("ZRO001", 5)) == [("ZRO001", 5)]


def test_the_whole_file() -> None:
    assert found("a: 1\n// dsgen: ignore-file[ZRO001]\nb: 1\n", ("ZRO001", 1), ("ZRO001", 3)) == []


def test_a_comment_that_hides_nothing_is_told() -> None:
    assert found("a: 1 # dsgen: ignore[ZRO001]") == [("SUP001", 1)]


@pytest.mark.parametrize("comment", ["# dsgen: ignore[zro001]", "# dsgen: ignore[ZRO]", "/* dsgen: ignore[ZRO001] */"])
def test_ways_to_write_it(comment: str) -> None:
    assert found(f"a: 1 {comment}", ("ZRO001", 1)) == []


def test_codes_that_nobody_looked_for_are_not_missed() -> None:
    assert list(suppressed([], "a: 1 # dsgen: ignore[ZRO001]", "f", lambda code: code != "ZRO001")) == []


@pytest.mark.parametrize("comment", ["# dsgen: ignore", "# dsgen: ignore[]", "# dsgen: ignore[zero]"])
def test_a_comment_without_codes_hides_nothing(comment: str) -> None:
    assert found(f"a: 1 {comment}", ("ZRO001", 1)) == [("ZRO001", 1), ("SUP001", 1)]


def test_findings_of_other_files_stay() -> None:
    finding = Finding(code="ZRO001", severity=Severity.ERROR, message="m", position=Position("other", 1))
    left = list(suppressed([finding], "a: 1 # dsgen: ignore[ZRO001]", "f"))
    assert [each.position.file for each in left] == ["other", "f"]
