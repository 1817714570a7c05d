"""From an offset in a text to its line and column."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsgen.documents.positions import Path, Position, Span

_BLOCK = 4096


class Lines:
    """Positions of offsets in a text. Only a line feed ends a line.

    The text is counted once, block by block: an offset costs a look at its block, whatever the size of the text.
    """

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.last_break = text.rfind("\n")
        """The offset of the last line feed; -1 without one."""
        self._blocks = [(1, 0)]  # for each block: the line it starts in, and the offset where that line starts
        for start in range(0, len(text) - _BLOCK, _BLOCK):
            self._blocks.append(self._line(start + _BLOCK, *self._blocks[-1], start))

    def position(self, offset: int) -> Position:
        """Where the character at `offset` stands; the end of the text is a place too."""
        block = min(offset // _BLOCK, len(self._blocks) - 1)
        line, start = self._line(offset, *self._blocks[block], block * _BLOCK)
        return Position(self.file, line, offset - start + 1)

    def _line(self, offset: int, line: int, start: int, begin: int) -> tuple[int, int]:
        """The line of `offset` and where it starts, given those of `begin` before it."""
        last = self.text.rfind("\n", begin, offset)
        return (line, start) if last < 0 else (line + self.text.count("\n", begin, offset), last + 1)


class Positions(Mapping[Path, Position]):
    """Positions of spans, worked out when somebody asks: most are never asked for."""

    def __init__(self, spans: Mapping[Path, Span], lines: Lines) -> None:
        self._spans = spans
        self._lines = lines

    def __getitem__(self, path: Path) -> Position:
        return self._lines.position(self._spans[path][0])

    def __iter__(self) -> Iterator[Path]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)
