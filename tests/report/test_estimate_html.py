"""The page of an estimate: its numbers, its texts, and that nothing in it comes from elsewhere or gets out."""

from __future__ import annotations

import dataclasses
import itertools
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree.ElementTree import Element

import pytest

from dsgen.memory import report as parts_of
from dsgen.memory.report import MemoryReport
from dsgen.planner.advice import Advised, advise
from dsgen.planner.compare import compare_stages
from dsgen.report.estimate_html import LOOKS, UNUSED, comparison_page, device_chart, estimate_page, node_chart

from ..conftest import RECIPES
from .pages import HOSTILE, estimated, find, hostile_pages, page_of, parsed, text, with_class

Write = Callable[..., Path]
SHIPPED = sorted(RECIPES.glob("*.yaml"))
TOO_MUCH = ("activation_checkpointing=none",)


def table(root: Element, chart: str) -> dict[str, dict[str, int]]:
    """Part -> column -> bytes; the last part is `together`."""
    found = find(root, f"{chart}-chart").find(".//table")
    assert found is not None
    columns = [(each.text or "").removesuffix(" (peak)") for each in found.findall("thead/tr/th")][1:]
    rows = {}
    for row in [*found.findall("tbody/tr"), *found.findall("tfoot/tr")]:
        head = row.find("th")
        assert head is not None and head.get("scope") == "row"
        name = (head[-1].tail or "" if len(head) else head.text or "").strip()
        rows[name] = dict(zip(columns, (int(each.get("value", "")) for each in row.iter("data")), strict=True))
    return rows


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_the_numbers_are_those_of_the_report(path: Path) -> None:
    _, base = estimated(path)
    report, root = base.report, parsed(page_of(path))
    device, node = table(root, "device"), table(root, "node")
    for phase in report.phases:
        assert {part: sizes[phase.name] for part, sizes in device.items() if sizes[phase.name]} == {
            **phase.device.device,
            "together": phase.device.device_bytes,
        }
    if base.plan.kind != "cpu":
        whole = {part: sizes["device total"] for part, sizes in device.items()}
        assert whole.pop("together") == report.device.total_peak_bytes
        assert whole.pop(UNUSED) == report.device.reserved_peak_bytes - report.device.allocated_peak_bytes
        assert {part: size for part, size in whole.items() if size} == report.device.parts
        for phase in report.phases:
            assert node["together"][phase.name] == phase.host.host_bytes * base.plan.per_node
    peak = max(node["together"], key=lambda name: node["together"][name])
    assert {part: sizes[peak] for part, sizes in node.items() if sizes[peak]} == {
        **report.host.parts,
        "together": report.host.peak_bytes,
    }
    figures = [each.find("data").get("value") for each in with_class(find(root, "figures"), "big")]  # type: ignore[union-attr]
    sizes = (report.device.allocated_peak_bytes, report.device.reserved_peak_bytes, report.device.total_peak_bytes)
    assert figures == [str(size) for size in sizes]


def test_bars_hold_what_the_table_holds() -> None:
    root = parsed(page_of(RECIPES / "70b-zero3-offload.yaml"))
    for chart in ("device", "node"):
        numbers = table(root, chart)
        for row in with_class(find(root, f"{chart}-chart"), "row"):
            name = row.find("div[@class='name']/b")
            if name is None:
                continue
            drawn = {each.get("data-tip", "").partition(":")[0]: each for each in with_class(row, "segment")}
            expected = {part: sizes[str(name.text)] for part, sizes in numbers.items() if sizes[str(name.text)]}
            assert sum(int(each.get("data-bytes", "")) for each in drawn.values()) == expected.pop("together")
            assert {part: int(each.get("data-bytes", "")) for part, each in drawn.items()} == expected
            assert list(drawn) == [part for part in LOOKS if part in drawn]


def test_text_of_the_table() -> None:
    _, base = estimated(RECIPES / "13b-zero2.yaml")
    root = parsed(page_of(RECIPES / "13b-zero2.yaml"))
    rows = {text(row).split("[")[0]: row for row in find(root, "device-chart").iter("tr")}
    (weights,) = (row for name, row in rows.items() if name.startswith("W weights"))
    first = weights.find("td")
    assert first is not None
    assert text(first) == f"{base.report.phases[0].device.device['weights'] / 2**30:.2f}" == "24.24"
    small = parsed(page_of(RECIPES / "tiny-cpu.yaml"))
    assert text(find(small, "device-table")).endswith("in MiB")
    assert text(find(small, "node-table")).endswith("in GiB")
    assert "< 0.01" in [text(each) for each in find(small, "node-chart").iter("td")]


def test_the_peak_is_marked_once_in_each_chart() -> None:
    _, base = estimated(RECIPES / "70b-zero3-offload.yaml")
    root = parsed(page_of(RECIPES / "70b-zero3-offload.yaml"))
    for chart, phase in (("device", base.report.peak_phase), ("node", base.report.host.peak_phase)):
        (row,) = (each for each in with_class(find(root, f"{chart}-chart"), "row") if "peak" in each.get("class", ""))
        assert text(row).startswith(f"{phase} peak")


def test_the_verdict_says_why(write_recipe: Write) -> None:
    why = {}
    for name, overrides in {
        "fits": (),
        "device": TOO_MUCH,
        "tight": ("memory.headroom=12.5%",),
        "host": ("hardware.host_memory=48GiB",),
    }.items():
        root = parsed(page_of(RECIPES / "13b-zero2.yaml", *overrides))
        (badge,) = with_class(next(with_class(root, "verdict")), "badge")
        why[name] = (badge.text, text(find(root, "why")))
    _, base = estimated(RECIPES / "13b-zero2.yaml", *TOO_MUCH)
    device, host = base.report.device, base.report.host
    assert device.capacity_bytes is not None
    takes = f"{device.total_peak_bytes / 2**30:.1f} GiB of {device.capacity_bytes / 2**30:.1f} GiB"
    assert why["fits"][0] == "Fits"
    assert why["fits"][1].endswith("at least 10 % stays free.")
    assert why["device"] == (
        "Does not fit",
        f"The fullest device takes {takes} and a node {host.peak_bytes / 2**30:.1f} GiB of 1024.0 GiB: the device is "
        f"fullest in {base.report.peak_phase} ({base.report.peak_moment}), mostly {base.report.peak_part}.",
    )
    assert why["tight"][0] == "Tight"
    assert "but 12.5 % should stay free: the device is fullest in " in why["tight"][1]
    assert "node" not in why["tight"][1].partition(":")[2]
    assert why["host"][0] == "Does not fit"
    assert why["host"][1].endswith(": the node is fullest in save (writing), mostly temporaries.")
    on_cpu = parsed(page_of(RECIPES / "tiny-cpu.yaml", "hardware.host_memory=8GiB"))
    assert re.match(r"A node takes 2\.\d GiB of 8\.0 GiB; at least 10 % stays free\.", text(find(on_cpu, "why")))
    unknown = parsed(page_of(RECIPES / "tiny-cpu.yaml", "hardware.host_memory=null"))
    assert text(find(unknown, "why")).startswith("Neither the device's memory nor the host's is known")


def test_lines_of_the_capacity() -> None:
    _, base = estimated(RECIPES / "13b-zero2.yaml")
    chart = device_chart(base.report)
    capacity = base.report.device.capacity_bytes
    assert capacity is not None
    limit, line = chart.lines
    assert (limit.kind, line.kind, line.percent) == ("limit", "capacity", 100)
    assert limit.percent == pytest.approx(90)
    first = chart.bars[0].segments[0]
    assert first.percent == pytest.approx(100 * first.size_bytes / capacity)
    # A job beyond the capacity stays within the chart.
    _, large = estimated(RECIPES / "13b-zero2.yaml", *TOO_MUCH)
    over = device_chart(large.report)
    assert sum(each.percent for each in over.bars[-1].segments) == pytest.approx(100 / 1.05)
    assert over.lines[1].percent == pytest.approx(100 * capacity / large.report.device.total_peak_bytes / 1.05)
    assert [bar.beyond for bar in over.bars][-1] == "beyond capacity"
    # What would be a sliver is drawn larger, and the page says so.
    node = node_chart(base.report, base.plan)
    assert node.lines == ()
    assert node.drawn_to == round(base.report.host.peak_bytes * 1.05)
    assert "the capacity of 1024.0 GiB is far to the right" in page_of(RECIPES / "13b-zero2.yaml")
    # No headroom, no second line.
    _, bare = estimated(RECIPES / "13b-zero2.yaml", "memory.headroom=0%")
    assert [each.kind for each in device_chart(bare.report).lines] == ["capacity"]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
@pytest.mark.parametrize("micro", [1, 7, 60])
def test_ticks_are_round_and_few(path: Path, micro: int) -> None:
    _, base = estimated(path, f"batch={{sequence_length: 2048, micro: {micro}, accumulation: 1}}")
    for chart in (device_chart(base.report), node_chart(base.report, base.plan)):
        assert 5 <= len(chart.ticks) <= 10
        step = float(chart.ticks[1].text.split()[0])
        assert f"{step:e}"[0] in "125" and float(f"{step:e}".split("e")[0]) in (1, 2, 5)
        for number, tick in enumerate(chart.ticks):
            assert tick.percent == pytest.approx(number * chart.ticks[1].percent)
            assert tick.percent <= 100


def test_advice_can_be_given_to_a_shell() -> None:
    loaded, base = estimated(RECIPES / "13b-zero2.yaml", *TOO_MUCH)
    advised = advise(loaded, base)
    section = find(parsed(page_of(RECIPES / "13b-zero2.yaml", *TOO_MUCH)), "advice")
    items = list(section.iter("li"))
    assert len(items) == len(advised.advice) > 0
    for item, each in zip(items, advised.advice, strict=True):
        code = item.find("pre/code")
        assert code is not None
        said = subprocess.run(
            ["bash", "-c", f"printf '%s\\n' {text(code)}"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
        assert said == [word for change in each.variant.overrides for word in ("--set", change)]
        shown = text(item)
        for change in each.changes:
            assert f"Cost {change.cost}" in shown
        sizes = [int(size.get("value", "")) for size in item.iter("data")]
        assert sizes == [each.variant.report.device.total_peak_bytes, each.variant.report.host.peak_bytes]


def test_where_nothing_fits(write_recipe: Write) -> None:
    path = write_recipe(
        model="llama-2-70b",
        hardware={"device": "ascend-910b3-64g", "per_node": 8, "host_memory": "64GiB"},
    )
    section = find(parsed(page_of(path)), "advice")
    assert "No settings make it fit" in text(section)
    assert "--set " in text(next(with_class(section, "closest")))
    assert "advice" not in [each.get("id") for each in parsed(page_of(RECIPES / "13b-zero2.yaml")).iter()]


def test_what_it_rests_on() -> None:
    _, base = estimated(RECIPES / "1b-fp32-baseline.yaml")
    report = dataclasses.replace(base.report, unmeasured=("this", "that"))
    root = parsed(estimate_page(report, base.plan, Advised(), ("a: 1: nobody said it",)))
    notes = [text(each) for each in find(root, "notes").iter("li")]
    assert notes[0] == "Assumed a: 1: nobody said it"
    assert notes[1].startswith("Assumed a node's memory of 1024.0 GiB")
    assert notes[2:4] == ["Not measured this", "Not measured that"]
    assert f"counted as {base.report.profile} " in notes[4]


def test_the_comparison() -> None:
    loaded, base = estimated(RECIPES / "13b-zero2.yaml")
    rows = compare_stages(loaded, base)
    root = parsed(comparison_page(rows, base.plan, ("a: 1: nobody said it",)))
    shown = root.findall(".//tbody/tr")
    assert len(shown) == len(rows) == 16
    for element, row in zip(shown, rows, strict=True):
        assert row.variant is not None
        report = row.variant.report
        assert text(element).startswith(f"Stage {row.stage} offload: {row.offload} checkpointing: {row.checkpointing}")
        assert [int(each.get("value", "")) for each in element.iter("data")] == [
            report.device.total_peak_bytes,
            report.host.peak_bytes,
        ]
        assert text(next(with_class(element, "badge"))).lower() == report.verdict
        assert ("same" in element.get("class", "")) == row.same
        assert text(next(element.iter("code"))) == " ".join(f"--set {each}" for each in row.variant.overrides)
    assert "Assumed a: 1: nobody said it" in text(find(root, "notes"))


def test_every_part_has_a_look_of_its_own() -> None:
    names = {value for name, value in vars(parts_of).items() if name.isupper() and isinstance(value, str)}
    assert names | {UNUSED} == set(LOOKS)
    for look in LOOKS.values():
        assert look.about.endswith(".")
    assert len({look.letter for look in LOOKS.values()}) == len({look.css for look in LOOKS.values()}) == len(LOOKS)


@pytest.mark.parametrize("which", [0, 1])
def test_hostile_texts_stay_texts(which: int) -> None:
    page = hostile_pages(RECIPES / "13b-zero2.yaml")[which]
    root = parsed(page)
    assert page.isascii()
    assert not {"script", "img", "iframe", "object", "link", "svg", "a" if which else "form"} & {
        each.tag for each in root.iter()
    }
    allowed = {"lang", "charset", "content", "http-equiv", "name", "class", "id", "style", "href", "value", "scope"}
    allowed |= {"role", "aria-label", "aria-labelledby", "aria-hidden", "tabindex", "data-bytes", "data-tip", "colspan"}
    assert {name for each in root.iter() for name in each.attrib} <= allowed
    for each in root.iter():
        assert re.fullmatch(r"(?:(?:width|left|right):-?\d+\.\d{4}%)?", each.get("style", ""))
    assert len(list(root.iter("style"))) == 1
    visible = text(root)
    shown = HOSTILE.replace("\u202e", "\\u202e")
    assert visible.count(shown) > 3
    assert "49" not in text(next(root.iter("h1")))


def test_nothing_comes_from_elsewhere() -> None:
    for page in (*hostile_pages(RECIPES / "13b-zero2.yaml"), page_of(RECIPES / "70b-zero3-offload.yaml", *TOO_MUCH)):
        root = parsed(page)
        assert "http:" not in page and "https:" not in page and "//" not in page.replace("</", "")
        assert "url(" not in page and "@import" not in page
        links = [each.get("href", "") for each in root.iter() if "href" in each.attrib]
        ids = {each.get("id") for each in root.iter()}
        assert all(link.startswith("#") for link in links)
        assert {link[1:] for link in links} <= ids
        assert not any(each.get("src") for each in root.iter())
        (policy,) = (each.get("content", "") for each in root.iter("meta") if each.get("http-equiv"))
        assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")


def test_ids_are_unique_and_references_lead_somewhere() -> None:
    root = parsed(page_of(RECIPES / "13b-zero2.yaml", *TOO_MUCH))
    ids = [each.get("id") for each in root.iter() if each.get("id")]
    assert len(ids) == len(set(ids))
    named = [each.get("aria-labelledby") for each in root.iter() if each.get("aria-labelledby")]
    assert named and set(named) <= set(ids)
    levels = [
        int(each.tag[1]) for each in root.iter() if isinstance(each.tag, str) and re.fullmatch("h[1-6]", each.tag)
    ]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


@pytest.mark.parametrize("more", [(), ("--compare", "stage")])
def test_the_same_bytes_everywhere(more: tuple[str, ...], tmp_path: Path, write_recipe: Write) -> None:
    pages = []
    for number, folder in enumerate(("one", "a/second")):
        path = write_recipe(f"{folder}/job.yaml", activation_checkpointing="none")
        command = [sys.executable, "-m", "dsgen", "estimate", str(path), "--format", "html", *more]
        environment = {**os.environ, "PYTHONHASHSEED": str(number), "PYTHONIOENCODING": ("ascii", "utf-8")[number]}
        out = subprocess.run(command, cwd=path.parent, env=environment, capture_output=True, check=False)
        assert out.stderr == b""
        pages.append(out.stdout)
    assert pages[0] == pages[1]
    assert str(tmp_path).encode() not in pages[0]
    assert pages[0].startswith(b"<!DOCTYPE html>\n") and pages[0].endswith(b"</html>\n")


def test_a_part_that_the_page_does_not_know_is_shown() -> None:
    _, base = estimated(RECIPES / "13b-zero2.yaml")
    phases = tuple(
        dataclasses.replace(
            phase, device=dataclasses.replace(phase.device, device={**phase.device.device, "new part": 2**30})
        )
        for phase in base.report.phases
    )
    report: MemoryReport = dataclasses.replace(base.report, phases=phases)
    chart = device_chart(report)
    assert chart.parts[-1][0] == "new part"
    assert "new part" in estimate_page(report, base.plan, Advised(), ())
