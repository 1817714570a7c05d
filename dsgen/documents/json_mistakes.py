"""What a text was meant to be: characters that only look like JSON's, templates nobody filled in, merge conflicts.

hjson reads most of them as keys and texts without quotes, so they are looked for there and where the reading stops.
Every pattern is bounded, so that a text of any length is searched in time linear to it.
"""

from __future__ import annotations

import re
import unicodedata

KINDS = ("conflict", "template", "look-alike")
"""Kinds of notes that are made of a mistake. Their detail is the mark, the placeholder or the character."""

_QUOTES = "“”„‟〝〞＂«»‘’‚‛＇"
_INSTEAD = {
    **dict.fromkeys(_QUOTES, '"'),
    **dict.fromkeys("，、﹐﹑،;；﹔", ","),
    **dict.fromkeys("：﹕︰", ":"),
    **dict(zip("｛｝［］【】", "{}[][]", strict=True)),
    **dict(zip("０１２３４５６７８９", "0123456789", strict=True)),
    **dict.fromkeys("−–—－", "-"),
    "．": ".",
}
"""A character that looks like one of JSON's -> that one."""
_ZERO_WIDTH = "\u00ad\u200b-\u200f\u2060\ufeff"
_BLANK = rf"[\x0b\x0c\x1c-\x1f\x85\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000{_ZERO_WIDTH}]"

_IN_KEY = re.compile(rf"[{_QUOTES}，、﹐﹑；﹔：﹕︰｛｝［］【】]|{_BLANK}")
_IN_TEXT = re.compile(
    rf"\A([{_QUOTES}｛［【０-９]|{_BLANK}|[−–—－](?=[ \t]?[0-9.０-９]))"
    rf"|\A(?:true|false|null|[0-9.eE+-]{{1,40}})({_BLANK}|[０-９．])"
    rf"|([，、﹐﹑；﹔：﹕︰｝］】])(?=\s{{0,200}}(?:[\"'{_QUOTES}}}\]，]|//|#|/\*|,?\s*\Z))"
)
"""A look-alike in a text without quotes, where JSON would have its own character: not within words."""
_CLOSING = re.compile(r"([”„‟〞＂])[ \t]{0,200}(?=[,:}\]，：\r\n]|\Z)")

_TEMPLATE = re.compile(
    r"\$\{[^{}\r\n]{0,60}\}|\$\([^()\r\n]{0,60}\)|\$[A-Za-z_]\w{0,60}"
    r"|(?:<[A-Za-z_][\w .-]{0,60}>|%[A-Za-z_]\w{0,60}%|%\(\w{1,60}\)[a-z]|@[A-Za-z_]\w{0,60}@)(?=[\s,}\]]|\Z)"
)
_BRACES = re.compile(r"\{\{[^\r\n]{0,60}?\}\}|\{%[^\r\n]{0,60}?%\}|\$\{[^\r\n}]{0,60}\}|\{[{%]|\$\{")
_CONFLICT = re.compile(r"^(?:<{7}|\|{7}|={7}|>{7})(?=[ \r\n]|\Z)", re.MULTILINE)
_SIDE = re.compile(r"^(?:<{7}|>{7})(?=[ \r\n]|\Z)", re.MULTILINE)

_PAGE = re.compile(r"\s*<(?:[?!]|[A-Za-z][\w:-]{0,60}[\s/>])")
_SECTION = re.compile(r"\[\[?[A-Za-z_][\w. -]{0,100}\]\]?[ \t]*\r?\n")
_SETTING = re.compile(rf"[{{\[\s]*[\"'{_QUOTES}]?[$\w.-]{{1,200}}[\"'{_QUOTES}]?[ \t]*[:：]|[\s{{}}\[\],]*\Z|#|//")
_LOOKED_AT = 200
"""Lines of a text that tell whether it is a config."""


def explained(kind: str, detail: str) -> tuple[str, str]:
    """Message and help for a mistake of one of the KINDS."""
    if kind == "conflict":
        return (
            f"a merge conflict that nobody resolved: {detail} is a mark of git",
            "choose one of the two sides and remove the lines with <<<<<<<, ======= and >>>>>>>",
        )
    if kind == "template":
        return f"a template that nobody filled in: {detail}", "render the template first, or write the value"
    name = unicodedata.name(detail, "a control character").lower()
    seen = f"{detail} (U+{ord(detail):04X}, {name})" if detail.isprintable() else f"U+{ord(detail):04X} ({name})"
    instead = _INSTEAD.get(detail)
    if instead is not None:
        return f"{seen} looks like {instead} but is another character", f"write {instead}"
    if re.match(f"[{_ZERO_WIDTH}]", detail):
        return f"{seen} is no blank, though nothing can be seen of it", "remove it"
    return f"{seen} is no blank of JSON", "write a plain space, or a line break"


def in_key(key: str, *, starts_line: bool) -> tuple[str, int, str] | None:
    """The mistake in a key without quotes: its kind, offset in the key, and detail."""
    if starts_line and _CONFLICT.match(key):
        return "conflict", 0, key[:7]
    found = None if key.isascii() else _IN_KEY.search(key)
    if found is not None:
        return "look-alike", found.start(), found[0]
    found = _TEMPLATE.match(key)
    return None if found is None else ("template", 0, found[0])


def in_text(raw: str, *, starts_line: bool) -> tuple[str, int, str] | None:
    """The mistake in a value without quotes, from its first character to the end of its line, as for `in_key`."""
    if starts_line and _CONFLICT.match(raw):
        return "conflict", 0, raw[:7]
    found = _TEMPLATE.match(raw)
    if found is not None:
        return "template", 0, found[0]
    found = None if raw.isascii() else _IN_TEXT.search(raw)
    if found is None:
        return None
    group = found.lastindex or 0
    return "look-alike", found.start(group), found[group]


def closing_quote(body: str) -> tuple[str, int, str] | None:
    """The typographic quote that was meant to close a text in double quotes, as for `in_key`."""
    found = None if body.isascii() else _CLOSING.search(body)
    return None if found is None or "“" in body[: found.start()] else ("look-alike", found.start(), found[1])


def placeholder(text: str, at: int) -> str:
    """The `{{ x }}`, `{% x %}` or `${x}` that starts at `at`, or an empty text."""
    found = _BRACES.match(text, at)
    return "" if found is None else found[0]


def like_json(text: str, at: int) -> str:
    """The character at `at` where it only looks like one of JSON's, or an empty text."""
    found = None if text[at : at + 1].isascii() else _IN_KEY.match(text, at)
    return "" if found is None else found[0]


def conflict(text: str) -> int | None:
    """Where the first mark of a merge conflict stands. A row of = alone can be the line below a heading."""
    if _SIDE.search(text) is None:
        return None
    found = _CONFLICT.search(text)
    return None if found is None else found.start()


def no_config(text: str, at: int) -> tuple[str, str] | None:
    """Message and help for an unreadable text that is something else than a config; its first word stands at `at`."""
    if text[at] in "{\"'" or like_json(text, at):
        return None
    help = 'name the config itself: a file with {"KEY": VALUE, ...}'
    if _PAGE.match(text, at):
        return "is XML or HTML, not a config", "look at what was saved: a page of a web site is not the file it shows"
    if text.startswith("#!"):
        return "is a script, not a config", help
    if _SECTION.match(text, at):
        return "is INI or TOML, not JSON or hjson", 'write {"KEY": VALUE, ...}'
    lines = [line for line in text[at : at + 100_000].split("\n")[:_LOOKED_AT] if line.strip()]
    settings = sum(_SETTING.match(line) is not None for line in lines)
    if not lines or text[at] == "[" or settings * 2 > len(lines):
        return None
    first = lines[0].strip()
    shown = first[:37] + "..." if len(first) > 40 else first
    return f"is neither JSON nor hjson, and no config at all: it starts with {shown}", help
