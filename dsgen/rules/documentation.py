"""The documentation of every code, from docstrings: what `dsgen explain` prints and docs/rules/ holds.

A rule is documented by its docstring, a code that no rule makes by a text of the same form in `other_codes`. The first
line says what is wrong. Then comes what really happens and why that is bad, then sections, each of them a line with a
colon and indented lines below:

    Example:            the content of a ds_config.json that gives such a finding
    Example (recipe):   the same as fields of a recipe, in YAML; likewise (accelerate), (hostfile), (environment) for
                        .deepspeed_env, and (yaml) for a ds_config in a file of YAML
    Instead:            the same content as it should be
    Options:            options of `dsgen lint` that the example needs, for example --world-size 2
    Since:              the version of DeepSpeed (or dsgen) from which on it is so

Examples in a ds_config.json or a recipe are parts of one, without what has nothing to do with the matter, unless their
first line is `# whole file`.
"""

from __future__ import annotations

import functools
import importlib
import re
import textwrap
from dataclasses import dataclass

from dsgen.findings import Severity
from dsgen.rules.other_codes import OTHER_CODES, OTHER_FAMILIES
from dsgen.rules.registry import FAMILIES, all_rules

KINDS = {
    "ds_config": "ds_config.json",
    "yaml": "ds_config.yaml",
    "recipe": "recipe",
    "accelerate": "accelerate config",
    "hostfile": "hostfile",
    "environment": ".deepspeed_env",
}
"""Kind of an example -> what it is called."""

_SECTION = re.compile(rf"(Example|Instead|Options|Since)(?: \(({'|'.join(KINDS)})\))?:\s*(.*)\Z")
_WHOLE = "# whole file"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Content of a document, to show what is wrong or right."""

    text: str
    whole: bool = False
    """Whether it is a whole document instead of a part."""


@dataclass(frozen=True, kw_only=True)
class Documentation:
    """What is known of a code."""

    code: str
    family: str
    severity: Severity
    in_ds_config: Severity
    """Severity in a ds_config.json that somebody wrote by hand."""
    summary: str
    text: str
    """Paragraphs, one a line, with an empty line between them."""
    kind: str
    """What the example is, by KINDS."""
    example: Sample
    instead: Sample
    options: str
    since: str


@functools.cache
def all_documentation() -> tuple[Documentation, ...]:
    """Every code that a finding can have, by family."""
    rules = [
        _parsed(each.code, each.family, each.severity, each.in_ds_config, each.check.__doc__) for each in all_rules()
    ]
    others = [
        _parsed(code, each.family, each.severity, each.severity, each.documentation)
        for code, each in OTHER_CODES.items()
    ]
    order = families()
    return tuple(sorted((*rules, *others), key=lambda each: (order.index(each.family), each.code)))


def families() -> tuple[str, ...]:
    """Names of the families of codes, in the order in which they are listed."""
    return (*OTHER_FAMILIES, *FAMILIES)


def about_family(name: str) -> str:
    """What the codes of a family are about, in one line."""
    if name in OTHER_FAMILIES:
        return OTHER_FAMILIES[name]
    return (importlib.import_module(f"dsgen.rules.{name}").__doc__ or "").strip().partition("\n")[0]


def documentation(code: str) -> Documentation | None:
    """What is known of a code, written in any case; None when there is no such code."""
    return next((each for each in all_documentation() if each.code == code.upper()), None)


def documented(family: str) -> tuple[Documentation, ...]:
    """The codes of a family, named by its name or by the letters of its codes (`ZRO`), in any case."""
    return tuple(each for each in all_documentation() if family.upper() in (each.family.upper(), each.code[:3]))


def _parsed(code: str, family: str, severity: Severity, in_ds_config: Severity, docstring: str | None) -> Documentation:
    summary, _, rest = (docstring or "").strip().partition("\n")
    sections: dict[str, list[str]] = {"": []}
    kind, current = "ds_config", ""
    for line in textwrap.dedent(rest).splitlines():
        match = _SECTION.match(line)
        if match is not None:
            current = match[1]
            kind = match[2] or kind
            sections[current] = [match[3]] if match[3] else []
        else:
            sections[current].append(line)

    def words(name: str) -> str:
        return _paragraphs("\n".join(sections.get(name, ())))

    return Documentation(
        code=code,
        family=family,
        severity=severity,
        in_ds_config=in_ds_config,
        summary=summary.strip(),
        text=words(""),
        kind=kind,
        example=_sample(sections.get("Example", [])),
        instead=_sample(sections.get("Instead", [])),
        options=words("Options"),
        since=words("Since"),
    )


def _paragraphs(text: str) -> str:
    """Text whose lines are put together again."""
    return "\n\n".join(" ".join(each.split()) for each in re.split(r"\n\s*\n", text.strip()))


def _sample(lines: list[str]) -> Sample:
    text = textwrap.dedent("\n".join(lines)).strip("\n")
    first, _, rest = text.partition("\n")
    whole = first == _WHOLE
    return Sample(text=rest if whole else text, whole=whole)
