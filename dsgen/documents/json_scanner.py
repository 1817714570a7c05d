r"""The tokens of JSON, and those of hjson, which DeepSpeed reads its config with (runtime/config.py).

Where they differ hjson 3.1 is followed to the letter (hjson/decoder.py), odd corners included: DeepSpeed does so.
"""

from __future__ import annotations

import json
import re

from dsgen.documents import json_mistakes as mistakes

BLANK = r"[ \t\n\r]*"
_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"

KEY = re.compile(rf'{BLANK}("([^"\\\x00-\x1f]*)"){BLANK}:')
"""A key of strict JSON without escapes, and its colon."""
SCALAR = re.compile(rf'{BLANK}("[^"\\\x00-\x1f]*"|true|false|null|{_NUMBER}){BLANK}(?=[,}}\]])')
"""A value of strict JSON without escapes, up to what follows it in a list or mapping."""
SPACE = re.compile(BLANK)
LINE = re.compile(r"[^\r\n]*")
BARE_KEY = re.compile(r"([^ \t\n\r:{}\[\],]+)([ \t\n\r]*)(:?)")
CONSTANT = re.compile(rf"(NaN|-?Infinity){BLANK}(?=[,}}\]]|\Z)")
"""The numbers that Python's json takes beyond JSON; text for hjson."""

# What must follow a word or number in hjson; anything else makes the rest of the line text. The digits of any script
# and the spaces of Unicode count there.
_END = r"(?=[,}\]#\r\n]|//|/\*|\Z)"
LITERAL = re.compile(rf"(?:(true|false|null)[^\S\r\n]*|(-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?)[ \t]*){_END}")
WORDS = {"true": True, "false": False, "null": None}

_STEP = {mark: re.compile(rf"[^{mark}\\\x00-\x1f]*(?:\\.[^{mark}\\\x00-\x1f]*){{0,1000}}") for mark in "\"'"}
_ESCAPE = re.compile(
    r"\\(?:u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})|u(.{0,4})|(.))",
    re.DOTALL,
)
_ESCAPES = {'"': '"', "'": "'", "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}


class Fault(Exception):
    """What stops the reading, at an offset of the text."""

    def __init__(self, offset: int, message: str, help: str = "", *, final: bool = False, ended: bool = False) -> None:
        super().__init__(message)
        self.offset = offset
        self.message = message
        self.help = help
        self.final = final
        """No other way to read the text is tried: a bound of dsgen, or hjson gives up here at once."""
        self.ended = ended
        """The text ended before its time: the cause can stand far before."""


def space(text: str, at: int) -> int:
    """The offset behind the blanks at `at`."""
    return SPACE.match(text, at).end()  # type: ignore[union-attr]


def comment(text: str, at: int) -> int:
    """The offset behind the comment at `at`; `at` itself where none starts."""
    if text[at : at + 1] == "#" or text.startswith("//", at):
        return LINE.match(text, at).end()  # type: ignore[union-attr]
    if not text.startswith("/*", at):
        return at
    end = text.find("*/", at + 2)
    if end < 0:
        raise Fault(at, "the comment that starts here is not closed", "close it with */", final=True)
    return end + 2


def string(text: str, at: int) -> tuple[str, int, bool]:
    """The text in the quotes that start at `at`, the offset behind them, and whether JSON takes its escapes."""
    quote = text[at]
    end = at + 1
    step = _STEP[quote]
    while (to := step.match(text, end).end()) != end:  # type: ignore[union-attr]
        end = to
    stop = text[end : end + 1]
    if stop != quote:
        raise _unclosed(text, at, end, stop)
    body = text[at + 1 : end]
    strict = True
    if "\\" in body:
        try:
            body = json.loads(text[at : end + 1]) if quote == '"' else _unescape(body, at + 1)
        except json.JSONDecodeError:
            body, strict = _unescape(body, at + 1), False
        if "\0" in body:
            raise Fault(at, "text with a NUL character, which no file or shell can hold", "leave it out", final=True)
        if not body.isascii() and any("\ud800" <= character <= "\udfff" for character in body):
            raise Fault(at, "text with half of a surrogate pair, which no file can hold", "leave it out", final=True)
    return body, end + 1, strict


def _unclosed(text: str, at: int, end: int, stop: str) -> Fault:
    quote = text[at]
    if stop in ("", "\n", "\r", "\\"):
        found = mistakes.closing_quote(text[at + 1 : end]) if quote == '"' else None
        if found is not None:
            kind, offset, detail = found
            return Fault(at + 1 + offset, *mistakes.explained(kind, detail))
        place = "in its line" if text.find("\n", end) >= 0 else "before the text ends"
        return Fault(at, f"the {quote} here is not closed {place}", f"close it with {quote}")
    return Fault(end, f"a control character (U+{ord(stop):04X}) in a text", f"write it as \\u{ord(stop):04x}")


def _unescape(body: str, offset: int) -> str:
    def character(found: re.Match[str]) -> str:
        high, low, code, single = found.groups()
        at = offset + found.start()
        if high is not None:
            return chr(0x10000 + ((int(high, 16) - 0xD800) << 10) + int(low, 16) - 0xDC00)
        if single is not None:
            if single not in _ESCAPES:
                raise Fault(at, f"\\{single} is no escape", "write a backslash as \\\\")
            return _ESCAPES[single]
        try:
            if len(code) != 4 or code[1] in "xX":
                raise ValueError
            number = int(code, 16)
        except ValueError:
            raise Fault(at, "\\u without four hexadecimal digits", "write a backslash as \\\\") from None
        if number < 0:
            raise Fault(at, "\\u with a negative number", "write a backslash as \\\\", final=True)
        return chr(number)

    return _ESCAPE.sub(character, body)


def multiline(text: str, at: int, indent: int | None) -> tuple[str, int]:
    """The text in the triple quotes that start at `at`, and the offset behind them.

    `indent` characters of white space are taken from the start of every line; None where hjson finds no line.
    """
    if indent is None:
        raise Fault(at, "hjson cannot read ''' in a file without line breaks", 'write the text in " quotes', final=True)
    start = _skip(text, at + 3)
    if start == len(text):
        raise Fault(at, "the ''' here is not closed before the text ends", "close it with '''", final=True)
    if text[start] == "\n":
        start = min(_skip(text, start + 1), start + 1 + indent)
    end = text.find("'''", start)
    if end < 0:
        raise Fault(at, "the ''' here is not closed before the text ends", "close it with '''")
    first, *others = text[start:end].split("\n")
    lines = [first, *(line[min(indent, _skip(line, 0)) :] for line in others)]
    return "\n".join(lines).replace("\r", "").removesuffix("\n"), end + 3


_SIDE = re.compile(r"[ \t\r]*")


def _skip(text: str, at: int) -> int:
    return _SIDE.match(text, at).end()  # type: ignore[union-attr]
