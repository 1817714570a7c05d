"""Pages of estimates, and reading them as a browser would."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

import html5lib

from dsgen.memory.estimate import estimate
from dsgen.planner.advice import advise
from dsgen.planner.compare import compare_stages
from dsgen.planner.variant import Variant
from dsgen.recipe.check import check_recipe
from dsgen.recipe.load import LoadedRecipe, load_recipe
from dsgen.recipe.resolve import resolve
from dsgen.report.estimate_html import comparison_page, estimate_page

HOSTILE = "</style><script>alert(1)</script>\"'><img src=x onerror=alert(2)> {{ 7 * 7 }} \u202eevil" + "x" * 200


def estimated(path: Path, *overrides: str) -> tuple[LoadedRecipe, Variant]:
    """A recipe and its estimate."""
    loaded = load_recipe(path, overrides)
    plan = resolve(check_recipe(loaded))
    return loaded, Variant(overrides=(), plan=plan, report=estimate(plan))


def page_of(path: Path, *overrides: str) -> str:
    """The page of a recipe's estimate."""
    loaded, base = estimated(path, *overrides)
    return estimate_page(base.report, base.plan, advise(loaded, base), ())


def hostile_pages(path: Path) -> tuple[str, str]:
    """Both pages of a job whose every text is hostile."""
    loaded, base = estimated(path, "activation_checkpointing=none")
    plan = dataclasses.replace(
        base.plan,
        name=HOSTILE,
        architecture=dataclasses.replace(base.plan.architecture, name=HOSTILE),
        device=dataclasses.replace(base.plan.device, id=HOSTILE),
        precision=HOSTILE,
        accumulate=HOSTILE,
        offload_optimizer=HOSTILE,
    )
    device = dataclasses.replace(
        base.report.device, parts={**base.report.device.parts, HOSTILE: 0}, reserved_source=HOSTILE
    )
    moved = [
        dataclasses.replace(
            phase,
            device=dataclasses.replace(phase.device, name=HOSTILE, device={**phase.device.device, HOSTILE: 2**30}),
            host=dataclasses.replace(phase.host, name=HOSTILE, host={**phase.host.host, HOSTILE: 2**33}),
        )
        for phase in base.report.phases
    ]
    report = dataclasses.replace(
        base.report,
        device=device,
        phases=tuple(moved),
        peak_moment=HOSTILE,
        peak_part=HOSTILE,
        profile=HOSTILE,
        unmeasured=(HOSTILE,),
    )
    advised = advise(loaded, base)
    first = advised.advice[0]
    change = dataclasses.replace(first.changes[0], cost=HOSTILE)
    variant = dataclasses.replace(first.variant, overrides=(f"name={HOSTILE}",))
    advised = dataclasses.replace(
        advised, advice=(dataclasses.replace(first, changes=(change,), variant=variant), *advised.advice[1:])
    )
    rows = list(compare_stages(loaded, base))
    rows[0] = dataclasses.replace(rows[0], variant=variant)
    rows[1] = dataclasses.replace(rows[1], variant=None, refused=HOSTILE)
    return estimate_page(report, plan, advised, (HOSTILE,)), comparison_page(rows, plan, (HOSTILE,))


def parsed(page: str) -> Element:
    """The document of a page. Raises html5lib's ParseError where it is no valid HTML."""
    root: Element = html5lib.HTMLParser(strict=True, namespaceHTMLElements=False).parse(page)
    return root


def with_class(root: Element, name: str) -> Iterator[Element]:
    """Elements of a class."""
    return (each for each in root.iter() if name in each.get("class", "").split())


def text(element: Element) -> str:
    """The text of an element, its white space as a browser shows it."""
    return " ".join("".join(element.itertext()).split())


def find(root: Element, id: str) -> Element:
    """The element of that id."""
    (found,) = (each for each in root.iter() if each.get("id") == id)
    return found
