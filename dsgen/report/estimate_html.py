"""A memory estimate as one HTML page that needs nothing else: what stands in it. Its layout is in templates/pages."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

from dsgen import __version__
from dsgen.memory import report as parts_of
from dsgen.memory.phases import add
from dsgen.memory.report import MemoryReport, Parts, Phase, Verdict
from dsgen.planner.advice import Advice, Advised
from dsgen.planner.compare import Row as Compared
from dsgen.planner.variant import Variant
from dsgen.recipe.plan import Plan
from dsgen.report.console import in_bytes, printable
from dsgen.resources import shipped

UNUSED = "reserved, not used"
"""What the allocator takes beyond what tensors hold; no part of the report, but the rest of the device's total."""

_GIB, _MIB = 2**30, 2**20
_ZOOM_BELOW = 0.2
"""A job that needs less of the capacity than this is drawn larger: nobody could see its parts."""


@dataclass(frozen=True, kw_only=True)
class Look:
    """How a part is shown, and what it is."""

    letter: str
    """Stands in its bars, so that no part is told by its colour alone."""
    css: str
    about: str


LOOKS: Mapping[str, Look] = {
    parts_of.WEIGHTS: Look(
        letter="W",
        css="weights",
        about="The weights that a rank keeps, in their own type; at stage 3 its part of them.",
    ),
    parts_of.MASTER: Look(
        letter="M", css="master", about="The fp32 weights that the optimizer updates; at stages 1 to 3 a rank's part."
    ),
    parts_of.STATES: Look(
        letter="O",
        css="states",
        about="What the optimizer keeps beside the master weights. The first step makes them; counted in every pass, "
        "because every later one has them.",
    ),
    parts_of.GRADIENTS: Look(
        letter="G", css="gradients", about="Whole gradients, or those of a rank's part, in the type that sums have."
    ),
    parts_of.BUCKETS: Look(
        letter="B",
        css="buckets",
        about="Buffers in which gradients are reduced: reduce_bucket_size in full, twice with overlap_comm at stages "
        "1 and 2. On the host: buffers that offloaded tensors pass through.",
    ),
    parts_of.GATHERED: Look(
        letter="H", css="gathered", about="Stage 3: weights of other ranks, gathered for the modules at work."
    ),
    parts_of.ACTIVATIONS: Look(
        letter="A",
        css="activations",
        about="What the forward pass keeps for the backward pass, and what the backward pass of a layer adds.",
    ),
    parts_of.LOSS: Look(
        letter="L", css="loss", about="Logits, their fp32 copy and log-softmax; less when the loss is chunked."
    ),
    parts_of.TEMPORARIES: Look(
        letter="T",
        css="temporaries",
        about="Copies that live for a moment: flattening, fp32 gradients of the step, norms, writing.",
    ),
    parts_of.COMMUNICATORS: Look(
        letter="C", css="communicators", about="Buffers of the collective communication library; no tensor holds them."
    ),
    parts_of.CONTEXT: Look(
        letter="D", css="context", about="What the device's driver and runtime take for a process; no tensor holds it."
    ),
    parts_of.ROUNDING: Look(
        letter="R",
        css="rounding",
        about="What page-locked buffers take beyond their size: each is rounded up to a power of two.",
    ),
    parts_of.PROCESSES: Look(
        letter="P", css="processes", about="A rank's Python, torch, DeepSpeed and transformers, without any tensor."
    ),
    UNUSED: Look(
        letter="U", css="unused", about="Memory that torch's allocator has taken from the device and no tensor holds."
    ),
}
"""In the order in which parts are stacked and listed."""

_OTHER = Look(letter="?", css="other", about="")

_PHASES = {
    "load": "the model is built and its weights are read",
    "initialize": "deepspeed.initialize makes its buffers and the master weights",
    "forward": "the forward pass, where it holds most",
    "loss": "the loss and its own backward pass",
    "backward": "the backward pass, while gradients come and are reduced",
    "step": "the optimizer's step",
    "all-gather": "updated weights come back from the other ranks",
    "save": "a checkpoint is written",
}


@dataclass(frozen=True, kw_only=True)
class Segment:
    """A part in a bar."""

    part: str
    look: Look
    size_bytes: int
    percent: float
    """Of the chart's width."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A phase, or the whole device at its peak."""

    name: str
    moment: str
    parts: Parts
    size_bytes: int
    segments: tuple[Segment, ...]
    peak: bool
    whole: bool
    """Whether this is the device's total at the peak."""
    beyond: str
    """What the bar is beyond: the capacity, the headroom, or nothing."""


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line across the bars: a capacity, or a capacity less the headroom."""

    kind: str
    text: str
    percent: float


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A number at the axis."""

    text: str
    percent: float


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Memory by phase and part, as bars and as a table."""

    id: str
    bars: tuple[Bar, ...]
    parts: tuple[tuple[str, Look], ...]
    """Every part that a bar holds, in the order of LOOKS."""
    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]
    unit: str
    unit_bytes: int
    drawn_to: int | None
    """Bytes at the right edge where that is less than the capacity."""

    @property
    def peak(self) -> Bar:
        """The phase that holds most."""
        return next(bar for bar in self.bars if bar.peak)

    @property
    def shown(self) -> Bar:
        """The bar that the legend's numbers are of: the whole device where there is one."""
        return next((bar for bar in self.bars if bar.whole), self.peak)


def estimate_page(report: MemoryReport, plan: Plan, advised: Advised, assumed: Sequence[str]) -> str:
    """The page of one estimate, in ASCII: verdict, charts with their tables, figures, advice, and what they rest on."""
    device, node = device_chart(report), node_chart(report, plan)
    present = {part for chart in (device, node) for part, _ in chart.parts}
    return _page(
        "estimate.html.j2",
        plan=plan,
        report=report,
        facts=_facts(plan),
        why=_why(report, node),
        device=device,
        node=node,
        advice=advised.advice,
        closest=advised.closest,
        assumed=assumed,
        about_parts=[(part, look) for part, look in LOOKS.items() if part in present],
        about_phases=[(phase.name, _PHASES.get(phase.name, "")) for phase in report.phases],
    )


def comparison_page(rows: Sequence[Compared], plan: Plan, assumed: Sequence[str]) -> str:
    """The page of one recipe at every ZeRO stage, in ASCII."""
    reports = [row.variant.report for row in rows if row.variant]
    scales = {
        "device": max([1, *(max(r.device.total_peak_bytes, r.device.capacity_bytes or 0) for r in reports)]),
        "node": max([1, *(max(r.host.peak_bytes, r.host.capacity_bytes or 0) for r in reports)]),
    }
    return _page(
        "comparison.html.j2",
        plan=plan,
        facts=_facts(plan),
        why=_compared(rows, reports[0] if reports else None),
        rows=rows,
        scales=scales,
        assumed=assumed,
    )


def device_chart(report: MemoryReport) -> Chart:
    """What the fullest device holds in each phase, and its total at the peak with what no tensor holds."""
    device = report.device
    bars: list[tuple[str, str, Parts]] = [(each.name, each.device.name, each.device.device) for each in report.phases]
    whole = add(device.parts, {UNUSED: device.total_peak_bytes - sum(device.parts.values())})
    peak = next(n for n, phase in enumerate(report.phases) if phase.name == report.peak_phase)
    if device.total_peak_bytes > device.allocated_peak_bytes:
        bars.append(("device total", f"at the peak: {report.peak_phase}", whole))
    return _chart("device", bars, peak, device.capacity_bytes, report.headroom)


def node_chart(report: MemoryReport, plan: Plan) -> Chart:
    """What a node's memory holds in each phase, all its ranks together."""
    bars = [(each.name, each.host.name, _on_node(each, plan)) for each in report.phases]
    peak = max(range(len(bars)), key=lambda n: sum(bars[n][2].values()))
    return _chart("node", bars, peak, report.host.capacity_bytes, report.headroom)


def _on_node(phase: Phase, plan: Plan) -> Parts:
    """On CPU the host is the device."""
    on_rank = add(phase.device.device, phase.host.host) if plan.kind == "cpu" else phase.host.host
    return {part: size * plan.per_node for part, size in on_rank.items()}


def _chart(
    name: str, bars: Sequence[tuple[str, str, Parts]], peak: int, capacity: int | None, headroom: float
) -> Chart:
    sizes = [sum(parts.values()) for _, _, parts in bars]
    highest = max(1, *sizes)
    scale = highest if capacity is None else max(highest, capacity)
    drawn_to = None
    if capacity is not None and highest < _ZOOM_BELOW * capacity:
        scale = drawn_to = round(highest * 1.05)
    elif capacity is None or scale > capacity:
        scale = round(scale * 1.05)
    lines = []
    if capacity is not None and drawn_to is None:
        limit = capacity * (1 - headroom)
        if headroom:
            lines.append(
                Line(
                    kind="limit",
                    text=f"less {_share(headroom)} headroom: {in_bytes(limit)}",
                    percent=100 * limit / scale,
                )
            )
        lines.append(Line(kind="capacity", text=f"capacity: {in_bytes(capacity)}", percent=100 * capacity / scale))
    unit, unit_bytes = ("GiB", _GIB) if highest >= _GIB else ("MiB", _MIB)
    present = {part for _, _, parts in bars for part, size in parts.items() if size}
    ordered = [part for part in LOOKS if part in present] + sorted(present - LOOKS.keys())
    return Chart(
        id=name,
        bars=tuple(
            Bar(
                name=title,
                moment=moment,
                parts=parts,
                size_bytes=size,
                segments=tuple(
                    Segment(
                        part=part,
                        look=LOOKS.get(part, _OTHER),
                        size_bytes=parts[part],
                        percent=100 * parts[part] / scale,
                    )
                    for part in ordered
                    if parts.get(part)
                ),
                peak=number == peak,
                whole=name == "device" and title == "device total",
                beyond=_beyond(size, capacity, headroom),
            )
            for number, ((title, moment, parts), size) in enumerate(zip(bars, sizes, strict=True))
        ),
        parts=tuple((part, LOOKS.get(part, _OTHER)) for part in ordered),
        lines=tuple(lines),
        ticks=tuple(_ticks(scale, unit, unit_bytes)),
        unit=unit,
        unit_bytes=unit_bytes,
        drawn_to=drawn_to,
    )


def _beyond(size: int, capacity: int | None, headroom: float) -> str:
    if capacity is None or size <= capacity * (1 - headroom):
        return ""
    return "beyond capacity" if size > capacity else "in the headroom"


def _ticks(scale: int, unit: str, unit_bytes: int) -> list[Tick]:
    """Four to nine round numbers from 0 on."""
    whole = scale / unit_bytes
    step = 10.0 ** (len(str(int(whole))) - 1)
    while whole / step < 4:
        step /= 2.5 if f"{step:e}"[0] == "5" else 2
    texts = [step * n for n in range(int(whole / step) + 1)]
    return [Tick(text=f"{at:g} {unit}" if at else "0", percent=100 * at / whole) for at in texts]


def _facts(plan: Plan) -> list[tuple[str, str]]:
    """What was estimated."""
    nodes = "1 node" if plan.nodes == 1 else f"{plan.nodes} nodes"
    offloaded = {"optimizer": plan.offload_optimizer, "parameters": plan.offload_parameters}
    offload = ", ".join(f"{what} to {place}" for what, place in offloaded.items() if place != "none")
    every = plan.checkpoint_every_layers
    recomputed = {0: "none", 1: "every layer"}.get(every, f"groups of {every} layers")
    facts = [
        ("Model", f"{plan.architecture.name}, {_elements(plan.parameters.total)} parameters"),
        ("Devices", f"{plan.world_size} x {plan.device.id}, {nodes}"),
        ("ZeRO stage", str(plan.stage)),
        ("Offload", offload or "none"),
        ("Precision", f"{plan.precision}, gradients summed in {plan.accumulate}"),
        ("Sequence length", f"{plan.sequence_length} tokens"),
        ("Batch", f"{plan.micro_batch} per rank, {plan.global_batch} in all, {plan.accumulation} x accumulated"),
        ("Activation checkpointing", recomputed),
    ]
    if plan.adapter is not None:
        facts.insert(1, ("LoRA", f"rank {plan.adapter.rank}, {_elements(plan.trainable_parameters)} trained"))
    return facts


def _why(report: MemoryReport, node: Chart) -> str:
    """The reason of the verdict, in one sentence."""
    device, host = report.device, report.host
    takes = []
    if device.capacity_bytes is not None:
        takes.append(
            f"the fullest device takes {in_bytes(device.total_peak_bytes)} of {in_bytes(device.capacity_bytes)}"
        )
    if host.capacity_bytes is not None:
        verb = "" if takes else "takes "
        takes.append(f"a node {verb}{in_bytes(host.peak_bytes)} of {in_bytes(host.capacity_bytes)}")
    if not takes:
        return (
            "Neither the device's memory nor the host's is known: the fullest device takes "
            f"{in_bytes(device.total_peak_bytes)} and a node {in_bytes(host.peak_bytes)}."
        )
    sentence = " and ".join(takes)
    sentence = sentence[0].upper() + sentence[1:]
    if report.verdict == "fits":
        return f"{sentence}; at least {_share(report.headroom)} stays free." if report.headroom else f"{sentence}."
    where = []
    if device.verdict == report.verdict:
        where.append(f"the device is fullest in {report.peak_phase} ({report.peak_moment}), mostly {report.peak_part}")
    if host.verdict == report.verdict:
        most = max(host.parts, key=lambda part: host.parts[part])
        where.append(f"the node is fullest in {node.peak.name} ({node.peak.moment}), mostly {most}")
    reason = "; ".join(where)
    if report.verdict == "tight":
        return f"{sentence}, but {_share(report.headroom)} should stay free: {reason}."
    return f"{sentence}: {reason}."


def _compared(rows: Sequence[Compared], known: MemoryReport | None) -> str:
    """What is compared, in a few sentences."""
    said = [
        "The recipe at each ZeRO stage, with what can be offloaded to host memory there, with activation checkpointing "
        "and without; all else is as it says."
    ]
    if known is not None:
        for what, capacity in (("device", known.device.capacity_bytes), ("node", known.host.capacity_bytes)):
            size = "memory of unknown size" if capacity is None else in_bytes(capacity)
            said.append(f"One {what} has {size}.")
        said.append(f"A job fits when {_share(known.headroom)} of both stays free.")
    if not any(row.same for row in rows):
        said.append("The recipe itself is none of these.")
    return " ".join(said)


def _elements(count: int) -> str:
    return f"{count / 1e9:.3g} billion" if count >= 10**9 else f"{count / 1e6:.3g} million"


def _share(part: float) -> str:
    return f"{100 * part:g} %"


def _cell(size: int | None, unit_bytes: int) -> str:
    """A number of a table, without its unit."""
    if not size:
        return "0"
    number = f"{size / unit_bytes:.2f}"
    return "< 0.01" if number == "0.00" else number


def _percent(number: float) -> str:
    """A length in CSS."""
    return f"{number:.4f}%"


def _changes(variant: Variant) -> list[str]:
    """Changes as options of a command line."""
    return [f"--set {shlex.quote(each)}" for each in variant.overrides]


def _costs(advice: Advice) -> list[str]:
    return list(dict.fromkeys(change.cost for change in advice.changes))


def _limit(capacity: int, headroom: float) -> float:
    return capacity * (1 - headroom)


_WORDS: Mapping[Verdict, str] = {"fits": "Fits", "tight": "Tight", "does not fit": "Does not fit", "unknown": "Unknown"}


def _page(name: str, **content: Any) -> str:
    folder = shipped("templates") / "pages"
    env = ImmutableSandboxedEnvironment(
        loader=jinja2.DictLoader({path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()}),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    env.filters |= {"bytes": in_bytes, "percent": _percent, "cell": _cell, "share": _share}
    env.filters |= {"changes": _changes, "costs": _costs}
    env.globals |= {"words": _WORDS, "limit": _limit, "looks": LOOKS, "version": __version__}
    page = env.get_template(name).render(**content)
    # In ASCII the page can be printed whatever the encoding of standard output is.
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")


def _finalize(value: Any) -> Any:
    """Names of recipes may hold characters that turn the direction of the text around them."""
    return printable(value) if isinstance(value, str) and not isinstance(value, Markup) else value
