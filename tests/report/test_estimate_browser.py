"""The page of an estimate as a browser shows it: lengths, widths, colours, keyboard, print, and no script."""

from __future__ import annotations

import base64
import functools
import itertools
import math
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dsgen.planner.advice import advise
from dsgen.planner.compare import compare_stages
from dsgen.report.estimate_html import LOOKS, comparison_page

from ..conftest import RECIPES
from .pages import estimated, hostile_pages, page_of

webdriver = pytest.importorskip("selenium.webdriver")
WebDriverException = pytest.importorskip("selenium.common.exceptions").WebDriverException

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(not (BROWSER and DRIVER), reason="needs chromium and chromedriver")

Rgb = tuple[float, float, float]
TOO_MUCH = ("activation_checkpointing=none",)
FAR_TOO_MUCH = (*TOO_MUCH, "batch={sequence_length: 2048, micro: 8, accumulation: 1}")
"""What makes it fit takes several changes at once."""

# Machado, Oliveira and Fernandes (2009), severity 1: how linear RGB looks without one kind of cone.
SEEN_AS: dict[str, tuple[Rgb, Rgb, Rgb]] = {
    "full vision": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}


class Shown:
    """Pages in a browser."""

    def __init__(self, driver: Any, folder: Path) -> None:
        self._driver = driver
        self._folder = folder

    def show(self, content: str, *, width: int = 1400, scheme: str = "light", media: str = "screen") -> None:
        """Load a page from a file into a window of this width."""
        path = self._folder / "page.html"
        path.write_text(content, encoding="ascii")
        preferred = [{"name": "prefers-color-scheme", "value": scheme}]
        self.tool("Emulation.setEmulatedMedia", media=media, features=preferred)
        self.resize(width)
        self._driver.get(path.as_uri())

    def resize(self, width: int) -> None:
        """A window of this width."""
        self.tool("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)

    def ask(self, function: str) -> Any:
        """The value of an expression of JavaScript in the page."""
        return self._driver.execute_script(f"return {function}")

    def tool(self, command: str, **arguments: Any) -> Any:
        """A command of the DevTools protocol."""
        return self._driver.execute_cdp_cmd(command, arguments)

    def press(self, key: str, code: int) -> None:
        """A key."""
        for kind in ("keyDown", "keyUp"):
            self.tool("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def point(self, selector: str, *, click: bool = False) -> None:
        """The mouse on the middle of an element."""
        box = self.ask(
            f"(e => {{e.scrollIntoView({{block: 'center'}}); return e.getBoundingClientRect().toJSON()}})"
            f"(document.querySelector({selector!r}))"
        )
        place = {"x": box["x"] + box["width"] / 2, "y": box["y"] + box["height"] / 2}
        self.tool("Input.dispatchMouseEvent", type="mouseMoved", **place)
        for kind in ("mousePressed", "mouseReleased") if click else ():
            self.tool("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **place)

    def complaints(self) -> list[Any]:
        """What the browser has logged since the last call."""
        return list(self._driver.get_log("browser"))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(BROWSER)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    profile = tmp_path_factory.mktemp("profile")
    arguments = ["--headless=new", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
    # Chromium's own sandbox refuses root.
    arguments += [f"--user-data-dir={profile}"] + (["--no-sandbox"] if os.getuid() == 0 else [])
    for argument in arguments:
        options.add_argument(argument)
    try:
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(str(DRIVER)))
    except WebDriverException as error:
        pytest.skip(f"{BROWSER} does not start: {str(error.msg).splitlines()[0]}")
    try:
        yield Shown(driver, tmp_path_factory.mktemp("pages"))
    finally:
        driver.quit()


def comparison() -> str:
    loaded, base = estimated(RECIPES / "13b-zero2.yaml")
    return comparison_page(compare_stages(loaded, base), base.plan, ())


PAGES: dict[str, Callable[[], str]] = {
    "fits": lambda: page_of(RECIPES / "13b-zero2.yaml"),
    "does not fit": lambda: page_of(RECIPES / "13b-zero2.yaml", *TOO_MUCH),
    "several changes": lambda: page_of(RECIPES / "13b-zero2.yaml", *FAR_TOO_MUCH),
    "far beyond": lambda: page_of(
        RECIPES / "70b-zero3-offload.yaml", "batch={sequence_length: 4096, micro: 32, accumulation: 1}"
    ),
    "tight host": lambda: page_of(RECIPES / "70b-zero3-offload.yaml", "hardware.host_memory=500GiB"),
    "unknown": lambda: page_of(RECIPES / "tiny-cpu.yaml", "hardware.host_memory=null"),
    "comparison": comparison,
    "hostile": lambda: hostile_pages(RECIPES / "13b-zero2.yaml")[0],
    "hostile comparison": lambda: hostile_pages(RECIPES / "13b-zero2.yaml")[1],
}


@functools.cache
def page(name: str) -> str:
    """The page of that name in PAGES."""
    return PAGES[name]()


@pytest.mark.parametrize("width", [360, 1400])
@pytest.mark.parametrize("name", ["fits", "does not fit", "tight host", "unknown"])
def test_lengths_are_in_proportion_to_bytes(browser: Shown, name: str, width: int) -> None:
    browser.show(page(name), width=width)
    for chart in ("device", "node"):
        bars = browser.ask(
            f"[...document.querySelectorAll('#{chart}-chart .bar')].map(bar => {{"
            "const left = bar.getBoundingClientRect().left; return {"
            "track: bar.parentElement.getBoundingClientRect().width, height: bar.getBoundingClientRect().height,"
            "lines: [...bar.parentElement.querySelectorAll('.line')].map(e => e.getBoundingClientRect().left - left),"
            "segments: [...bar.children].map(e => {const box = e.getBoundingClientRect(); "
            "return [box.left - left, box.width, +e.dataset.bytes, box.height]})}})"
        )
        assert len({(bar["track"], bar["height"]) for bar in bars}) == 1
        longest = max(bars, key=lambda bar: sum(segment[2] for segment in bar["segments"]))
        total = sum(segment[2] for segment in longest["segments"])
        width_of_all = longest["segments"][-1][0] + longest["segments"][-1][1]
        assert 0.15 * longest["track"] < width_of_all <= longest["track"] + 0.1
        for bar in bars:
            at = 0.0
            for left, wide, size, high in bar["segments"]:
                assert wide == pytest.approx(width_of_all * size / total, abs=0.1)
                assert left == pytest.approx(at, abs=0.05)
                assert high == bar["height"]
                at += wide
            assert bar["lines"] == longest["lines"]
    if name == "fits":
        _, base = estimated(RECIPES / "13b-zero2.yaml")
        capacity = base.report.device.capacity_bytes
        assert capacity is not None
        limit, line, per_byte = browser.ask(
            "(bar => [...bar.parentElement.querySelectorAll('.line')].map(e => e.getBoundingClientRect().left - "
            "bar.getBoundingClientRect().left).concat(bar.firstElementChild.getBoundingClientRect().width / "
            "bar.firstElementChild.dataset.bytes))(document.querySelector('#device-chart .bar'))"
        )
        assert line == pytest.approx(per_byte * capacity, abs=1)
        assert limit == pytest.approx(per_byte * capacity * 0.9, abs=1)


@pytest.mark.parametrize("name", PAGES)
def test_the_page_does_not_scroll_sideways(browser: Shown, name: str) -> None:
    browser.show(page(name))
    for width in (320, 360, 800, 1400):
        browser.resize(width)
        nothing_sticks_out(browser, width)


def nothing_sticks_out(browser: Shown, width: int) -> None:
    """Only what stands in a box that scrolls by itself may be wider than the page."""
    assert browser.ask("[document.documentElement.scrollWidth, innerWidth]") == [width, width]
    out = browser.ask(
        "[...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll') && "
        "(e.getBoundingClientRect().right > innerWidth + 0.5 || e.getBoundingClientRect().left < -0.5))"
        ".map(e => e.outerHTML)"
    )
    assert out == []
    # Nor does a text run over the one beside it.
    over = browser.ask(
        "[...document.querySelectorAll('.row > .name, .row > .value, .legend li, .card, dd, dt')]"
        ".filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.outerHTML)"
    )
    assert over == []


def test_heads_of_lines_do_not_cover_each_other(browser: Shown) -> None:
    for name, width in itertools.product(("fits", "does not fit", "far beyond", "tight host"), (360, 1400)):
        browser.show(page(name), width=width)
        overlaps = browser.ask(
            "(() => {const text = e => {const range = document.createRange(); range.selectNodeContents(e); "
            "return range.getBoundingClientRect()}; "
            "return [...document.querySelectorAll('.heads, .axis')].flatMap(row => {"
            "const all = [...row.querySelectorAll('.head, .tick')].filter(e => getComputedStyle(e).visibility != "
            "'hidden').map(text); return all.flatMap((a, i) => all.slice(i + 1).filter(b => a.left < b.right && b.left "
            "< a.right && a.top + 4 < b.bottom && b.top + 4 < a.bottom))})})()"
        )
        assert overlaps == [], (name, width)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["does not fit", "tight host", "unknown", "comparison"])
def test_contrast(browser: Shown, name: str, scheme: str) -> None:
    """WCAG 2.2: 4.5 for texts (1.4.3), 3 for what is no text (1.4.11)."""
    browser.show(page(name), scheme=scheme)
    texts = browser.ask(
        "(() => {const behind = e => {for (; e; e = e.parentElement) {const c = getComputedStyle(e).backgroundColor; "
        "if (c != 'rgba(0, 0, 0, 0)') return c} return 'none'}; const found = []; "
        "const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT); "
        "while (walk.nextNode()) {const t = walk.currentNode, e = t.parentElement; if (t.data.trim()) "
        "found.push([t.data.trim(), getComputedStyle(e).color, behind(e)])} return found})()"
    )
    assert len(texts) > 80
    low = [each for each in texts if contrast(rgb(each[1]), rgb(each[2])) < 4.5]
    assert low == []
    ground = rgb(browser.ask("getComputedStyle(document.body).backgroundColor"))
    assert (luminance(ground) > 0.5) == (scheme == "light")
    marks = browser.ask(
        "[...document.querySelectorAll('.segment:not(.p-unused), .used')].map(e => "
        "getComputedStyle(e).backgroundColor).concat([...document.querySelectorAll('.track .line')].map(e => "
        "getComputedStyle(e).borderLeftColor))"
    )
    assert [each for each in marks if contrast(rgb(each), ground) < 3] == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_parts_can_be_told_apart_by_everybody(browser: Shown, scheme: str) -> None:
    browser.show(page("fits"), scheme=scheme)
    names = [look.css for look in LOOKS.values() if look.css != "unused"]
    colours = {}
    for name in names:
        colours[name] = rgb(
            browser.ask(
                f"(() => {{const e = document.body.appendChild(document.createElement('i')); e.className = 'p-{name}'; "
                "return getComputedStyle(e).backgroundColor})()"
            )
        )
    pairs = [set(pair) for pair in itertools.combinations(names, 2)]
    # These never stand in one chart: they are the host's, and on CPU, where the host is the device, these are not.
    pairs = [pair for pair in pairs if pair not in ({"context", "processes"}, {"communicators", "rounding"})]
    for kind, matrix in SEEN_AS.items():
        seen = {
            name: oklab(tuple(sum(f * c for f, c in zip(row, colour, strict=True)) for row in matrix))  # type: ignore[arg-type]
            for name, colour in colours.items()
        }
        for pair in pairs:
            one, other = sorted(pair)
            assert math.dist(seen[one], seen[other]) > 0.075, (kind, pair)


def test_by_keyboard(browser: Shown) -> None:
    browser.show(page("does not fit"), width=360)
    reached = []
    for _ in range(60):
        browser.press("Tab", 9)
        reached.append(
            browser.ask(
                "(e => [e.tagName.toLowerCase(), e.className, e.getAttribute('href') || e.textContent.slice(0, 80), "
                "getComputedStyle(e).outlineStyle])(document.activeElement)"
            )
        )
        if reached[-1] == reached[0] and len(reached) > 1:
            reached.pop()
            break
        if reached[-1][2] == "#about-weights" and reached[-1][0] == "a":
            dimmed = browser.ask(
                "[...document.activeElement.closest('.chart').querySelectorAll('.segment')]"
                ".map(e => [e.classList.contains('p-weights'), getComputedStyle(e).opacity])"
            )
            assert {(bool(same), float(opacity)) for same, opacity in dimmed} == {(True, 1.0), (False, 0.2)}
    kinds = [each[0] for each in reached]
    assert kinds.count("pre") == 2 and sum(each[1] == "scroll" for each in reached) == 2
    assert all(each[3] == "solid" for each in reached if each[0] != "body")
    scrolled = browser.ask("(e => {e.focus(); return [e.scrollWidth > e.clientWidth, e.scrollLeft]})"
                           "(document.querySelector('.scroll'))")  # fmt: skip
    assert scrolled == [True, 0]
    # The parts' names stay beside the numbers.
    moved = browser.ask(
        "(e => {e.scrollLeft = 200; const box = e.getBoundingClientRect(); "
        "return [e.scrollLeft, e.querySelector('tbody th').getBoundingClientRect().left - box.left]})"
        "(document.querySelector('.scroll'))"
    )
    assert moved[0] == 200
    assert moved[1] == pytest.approx(1, abs=1)


def test_for_a_screen_reader(browser: Shown) -> None:
    browser.show(page("does not fit"))
    nodes = browser.tool("Accessibility.getFullAXTree")["nodes"]
    named: dict[str, list[str]] = {}
    for node in nodes:
        if not node.get("ignored"):
            named.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    assert [name.split(":")[0] for name in named["image"]] == ["Stacked bars, one for each phase"] * 2
    assert named["table"] == [
        "One device, by phase and part, in GiB",
        "One node's memory, by phase and part, in GiB",
    ]
    assert "main" in named and "contentinfo" in named and "banner" in named
    # Letters of the legend are for eyes only.
    assert {"weights", "gradients"} <= {name.strip() for name in named["rowheader"]}


def test_details_on_hover(browser: Shown) -> None:
    for width in (360, 1400):
        browser.show(page("fits"), width=width)
        browser.point("#device-chart .whole .segment.p-unused")
        tip = browser.ask(
            "(e => [getComputedStyle(e, '::after').content, getComputedStyle(e, '::after').position])"
            "(document.querySelector('#device-chart .whole .segment.p-unused'))"
        )
        assert tip[0].startswith('"reserved, not used: ') and tip[0].endswith(' % of device total"')
        assert tip[1] == "absolute"
        assert browser.ask("document.documentElement.scrollWidth") == width


def test_options_are_taken_with_one_click(browser: Shown) -> None:
    loaded, base = estimated(RECIPES / "13b-zero2.yaml", *FAR_TOO_MUCH)
    advice = advise(loaded, base).advice
    assert max(len(each.variant.overrides) for each in advice) > 1
    browser.show(page("several changes"), width=360)
    for number, each in enumerate(advice, 1):
        browser.point(f"#advice li:nth-child({number}) pre code span", click=True)
        taken = browser.ask("getSelection().toString().trim()")
        assert taken == " ".join(f"--set {change}" for change in each.variant.overrides)
    browser.show(page("comparison"))
    browser.point("tr.same code", click=True)
    assert browser.ask("getSelection().toString().trim()") == "--set zero.stage=2 --set activation_checkpointing=full"


def test_without_script_it_is_the_same(browser: Shown) -> None:
    pictures = []
    for off in (False, True):
        browser.tool("Emulation.setScriptExecutionDisabled", value=off)
        try:
            browser.show(page("does not fit"))
            clip = {"x": 0, "y": 0, "width": 1400, "height": 3000, "scale": 1}
            pictures.append(browser.tool("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"])
        finally:
            browser.tool("Emulation.setScriptExecutionDisabled", value=False)
    assert pictures[0] == pictures[1]


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_loaded_and_nothing_runs(browser: Shown, name: str) -> None:
    browser.complaints()
    browser.show(page(name))
    assert browser.ask("performance.getEntriesByType('resource').length") == 0
    assert browser.ask("document.scripts.length") == 0
    assert browser.complaints() == []


@pytest.mark.parametrize("name", ["does not fit", "tight host", "comparison"])
def test_on_paper(browser: Shown, name: str) -> None:
    """A4 with the usual margins is 718 px wide; whoever prefers the dark prints dark on light too."""
    browser.show(page(name), width=718, scheme="dark", media="print")
    assert luminance(rgb(browser.ask("getComputedStyle(document.body).backgroundColor"))) > 0.9
    assert luminance(rgb(browser.ask("getComputedStyle(document.body).color"))) < 0.1
    assert browser.ask("document.documentElement.scrollWidth") <= 718
    browser.show(page(name), scheme="dark")
    pdf = base64.b64decode(browser.tool("Page.printToPDF", paperWidth=8.27, paperHeight=11.69)["data"])
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf))
    assert 1 <= pages <= 8


def rgb(text: str) -> Rgb:
    """Linear red, green and blue of a computed colour."""
    red, green, blue = (int(each) / 255 for each in re.findall(r"\d+", text)[:3])
    assert text.startswith("rgb("), text
    return linear(red), linear(green), linear(blue)


def linear(channel: float) -> float:
    return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4


def luminance(colour: Rgb) -> float:
    return 0.2126 * colour[0] + 0.7152 * colour[1] + 0.0722 * colour[2]


def contrast(one: Rgb, other: Rgb) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def oklab(colour: Rgb) -> Rgb:
    """Bjoern Ottosson's OKLab, in which distances are as eyes see them."""
    red, green, blue = (min(1.0, max(0.0, each)) for each in colour)
    l = (0.4122214708 * red + 0.5363325363 * green + 0.0514459929 * blue) ** (1 / 3)  # noqa: E741
    m = (0.2119034982 * red + 0.6806995451 * green + 0.1073969566 * blue) ** (1 / 3)
    s = (0.0883024619 * red + 0.2817188376 * green + 0.6299787005 * blue) ** (1 / 3)
    return (
        0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
        1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
        0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s,
    )
