"""What `dsgen estimate` says of runs whose memory others have measured and published.

    python benchmarks/memory_accuracy.py [--points FILE] [--format json] [--verbose]

Each point becomes a recipe, is resolved and estimated. Compared is the figure that was measured: allocated, reserved or
device total; device total where the source does not say. Runs by other trainers than DeepSpeed take what concerns the
model from dsgen's arithmetic, and the rest from memory_trainers.py. No constant is fitted to the points; the only thing
that is learned from them is the margin, which is judged by leaving whole sources out.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memory_peers import PEERS, predictions
from memory_points import NoPlanError, plan_of, trained_by_deepspeed
from memory_trainers import KNOWN, held

from dsgen.memory.device_total import CONTEXT_BYTES
from dsgen.memory.estimate import estimate
from dsgen.memory.job import read_job
from dsgen.memory.reserved import with_room_bytes

POINTS = Path(__file__).resolve().parent / "data" / "memory-points.json"
GIB = 1 << 30
SLACK = 0.05
"""An underestimate is one by more than this."""
COVERED = 0.95
"""Part of the points that the margin must cover."""

Point = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Compared:
    """A point with what was estimated, in GiB per device."""

    id: str
    group: str
    method: str
    trusted: bool
    """Of medium or high confidence, as whoever gathered the points judged."""
    deepspeed: bool
    varying: bool
    """Whether its sequences have different lengths."""
    metric: str
    predicted: float
    measured: float
    peers: Mapping[str, float | None]

    @property
    def error(self) -> float:
        """Of what was measured."""
        return self.predicted / self.measured - 1


def metric_of(point: Point) -> str:
    """The figure that was measured, by its name: allocated, reserved or device total."""
    words = point["metric"].lower()
    if "smi" in words or "nvml" in words or "unknown" in words or "not stated" in words:
        return "device total"
    if "reserved" not in words.partition(";")[0] and ("allocated" in words or "active" in words):
        return "allocated"
    return "reserved"


def lengths_vary(point: Point) -> bool:
    """Whether the source says that sequences are padded to the longest of their batch."""
    return "±" in point.get("notes", "") or "dataset" in point.get("seq_source", "")


def predict(point: Point) -> float:
    """What dsgen says of the figure that was measured, in GiB. Raises NoPlanError."""
    metric, varying = metric_of(point), lengths_vary(point)
    context = point.get("context_mib", 0) * 2**20 or CONTEXT_BYTES["npu" if "Ascend" in point["hw"] else "cuda"]
    if trained_by_deepspeed(point):
        plan = plan_of(point)
        report = estimate(plan)
        device, job = report.device, read_job(plan)
        reserved: float = with_room_bytes(job, report.phases, device.steady_bytes, varying)
        beside = device.total_peak_bytes - device.reserved_peak_bytes
        allocated: float = device.allocated_peak_bytes
    else:
        llama = point["act"] == "swiglu" and point.get("head", "lm") in ("lm", None)
        if point["framework"] not in KNOWN:
            raise NoPlanError(f"what {point['framework']} keeps is not known")
        found = held(point, read_job(plan_of(point)) if llama else None, varying)
        allocated, reserved, beside = found.allocated, found.reserved, context
    return {"allocated": allocated, "reserved": reserved, "device total": reserved + beside}[metric] / GIB


def compare(points: Iterable[Point]) -> tuple[list[Compared], dict[str, str]]:
    """Every point that has a plan, and why the others have none, by id."""
    found: list[Compared] = []
    without: dict[str, str] = {}
    for point in points:
        try:
            predicted, peers = predict(point), predictions(point)
        except NoPlanError as error:
            without[point["id"]] = str(error)
            continue
        except KeyError as error:
            without[point["id"]] = f"the point has no {error}"
            continue
        found.append(
            Compared(
                id=point["id"],
                group=point["group"],
                method="full" if point["method"] == "full" else "lora",
                trusted=point["confidence"] in ("medium", "high"),
                deepspeed=trained_by_deepspeed(point),
                varying=lengths_vary(point),
                metric=metric_of(point),
                predicted=predicted,
                measured=point["measured_gib"],
                peers=peers,
            )
        )
    return found, without


def percentile(values: Iterable[float], part: float) -> float:
    """The smallest of the values that `part` of them do not pass."""
    ordered = sorted(values)
    return ordered[max(0, -int(-len(ordered) * part // 1) - 1)]


def summary(name: str, some: Sequence[Compared]) -> dict[str, Any]:
    """Errors of some points, as parts of what was measured, and those of the peers that say something of them."""
    said = {
        "group": name,
        "points": len(some),
        **errors([(each.predicted, each.measured) for each in some]),
        "peers": {},
    }
    for peer in PEERS:
        pairs = [(p, each.measured) for each in some if (p := each.peers.get(peer.name)) is not None]
        if pairs:
            said["peers"][peer.name] = {"points": len(pairs), **errors(pairs)}
    return said


def errors(pairs: Sequence[tuple[float, float]]) -> dict[str, Any]:
    """Of pairs of predicted and measured."""
    relative = [predicted / measured - 1 for predicted, measured in pairs]
    return {
        "median": statistics.median(map(abs, relative)),
        "p90": percentile(map(abs, relative), 0.9),
        "bias": statistics.median(relative),
        "underestimates": sum(each < -SLACK for each in relative),
    }


def margin(some: Sequence[Compared]) -> float:
    """The factor on what is predicted that covers 95 % of the points within the slack."""
    return max(1.0, percentile((each.measured * (1 - SLACK) / each.predicted for each in some), COVERED))


def missed(some: Iterable[Compared], factor: float) -> int:
    """Points that took over 5 % more than `factor` times what is predicted."""
    return sum(each.predicted * factor < each.measured * (1 - SLACK) for each in some)


def margins(found: Sequence[Compared]) -> dict[str, Any]:
    """The margin of the points of medium and high confidence, for lengths that never change and for lengths that vary;
    and for each source the margin of the others, with how many of its points that misses."""
    learned = {}
    for name, varying in (("fixed lengths", False), ("varying lengths", True)):
        some = [each for each in found if each.trusted and each.varying is varying]
        if not some:
            continue
        factor = margin(some)
        left_out = {}
        for source in sorted({each.group for each in some}):
            own = [each for each in some if each.group == source]
            others = [each for each in some if each.group != source]
            if others:
                left_out[source] = {"factor": margin(others), "points": len(own), "missed": missed(own, margin(others))}
        learned[name] = {"factor": factor, "points": len(some), "missed": missed(some, factor), "left_out": left_out}
    return learned


SETS: dict[str, Callable[[Compared], bool]] = {
    "full-parameter, medium and high confidence": lambda each: each.method == "full" and each.trusted,
    "of which DeepSpeed": lambda each: each.method == "full" and each.trusted and each.deepspeed,
    "LoRA, medium and high confidence": lambda each: each.method == "lora" and each.trusted,
    "low confidence": lambda each: not each.trusted,
    "all": lambda each: True,
}


def groups_of(found: Sequence[Compared]) -> list[dict[str, Any]]:
    """Summaries by source and method, then of the sets."""
    groups = []
    for group, method in sorted({(each.group, each.method) for each in found}):
        groups.append(summary(f"{group} {method}", [e for e in found if (e.group, e.method) == (group, method)]))
    for name, belongs in SETS.items():
        some = [each for each in found if belongs(each)]
        if some:
            groups.append(summary(name, some))
    return groups


def show(found: Sequence[Compared], without: Mapping[str, str], verbose: bool) -> None:
    """Print the tables."""
    groups = groups_of(found)
    for each in found:
        if verbose or (each.deepspeed and each.method == "full"):
            said = f"{each.predicted:7.1f} GiB of {each.measured:7.1f} measured  {each.error:+.0%}"
            print(f"{each.id:<12} {each.metric:<12} {said}")
    print(f"\n{'':<44} {'points':>6} {'median':>7} {'P90':>5} {'bias':>5}  below by more than {SLACK:.0%}")
    for g in groups:
        numbers = f"{g['points']:>6} {g['median']:>7.1%} {g['p90']:>5.0%} {g['bias']:>+5.0%}  {g['underestimates']}"
        print(f"{g['group']:<44} {numbers}")
    print()
    for name, one in margins(found).items():
        print(f"margin for {name} x {one['factor']:.2f}: misses {one['missed']} of {one['points']} points")
        for source, other in one["left_out"].items():
            print(f"  without {source} x {other['factor']:.2f}: misses {other['missed']} of its {other['points']}")
    print("\nothers on the same points: median / P90 (points that they say something of)")
    for g in groups:
        said = ", ".join(f"{n} {e['median']:.0%} / {e['p90']:.0%} ({e['points']})" for n, e in g["peers"].items())
        print(f"{g['group']}: dsgen {g['median']:.0%} / {g['p90']:.0%} ({g['points']}), {said}")
    for reason, count in Counter(without.values()).most_common():
        print(f"no plan for {count}: {reason}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=Path, default=POINTS, help="file of points (default: %(default)s)")
    parser.add_argument("--format", choices=["text", "json"], default="text")
    parser.add_argument("--verbose", action="store_true", help="every point")
    options = parser.parse_args()
    found, without = compare(json.loads(options.points.read_text(encoding="utf-8"))["points"])
    if options.format == "text":
        show(found, without, options.verbose)
        return
    points = [
        {
            "id": e.id,
            "group": e.group,
            "metric": e.metric,
            "predicted_gib": e.predicted,
            "measured_gib": e.measured,
            "peers_gib": dict(e.peers),
        }
        for e in found
    ]
    said = {"points": points, "groups": groups_of(found), "margins": margins(found), "without_plan": without}
    print(json.dumps(said, indent=2))


if __name__ == "__main__":
    main()
