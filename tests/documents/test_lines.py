from __future__ import annotations

import time

from hypothesis import given
from hypothesis import strategies as st

from dsgen.documents.lines import Lines, Positions
from dsgen.documents.positions import Position


@given(st.text("ab\n\r", max_size=60), st.integers(0, 200))
def test_every_offset_has_its_line_and_column(piece: str, times: int) -> None:
    text = piece * times  # up to three blocks
    lines = Lines(text, "f")
    for offset in {*range(0, len(text), max(1, len(text) // 50)), len(text), 4095, 4096, 4097, 8192}:
        if offset <= len(text):
            before = text[:offset].split("\n")
            assert lines.position(offset) == Position("f", len(before), len(before[-1]) + 1)


def test_a_long_line_costs_no_more_than_many() -> None:
    lines = Lines("x" * 4_000_000, "f")
    started = time.process_time()
    assert lines.position(3_999_999) == Position("f", 1, 4_000_000)
    for offset in range(3_000_000, 3_100_000):
        lines.position(offset)
    assert time.process_time() - started < 2


def test_positions_are_a_mapping_of_where_spans_start() -> None:
    positions = Positions({(): (0, 9), ("a",): (3, 4)}, Lines("{\n a: 1}", "f"))
    assert dict(positions) == {(): Position("f", 1, 1), ("a",): Position("f", 2, 2)}
    assert positions.get(("b",)) is None and ("b",) not in positions and ("a",) in positions
