"""What `dsgen render` did, as text or JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import dsgen
from dsgen.recipe.plan import Plan
from dsgen.render.files import Rendered
from dsgen.render.lock import Lock, digest
from dsgen.render.output import Difference, Written
from dsgen.report.console import printable, say
from dsgen.report.findings import finding_json, show_findings


def show_rendered(rendered: Rendered, written: Written, folder: Path, *, explain: bool, form: str) -> None:
    """Print what was written; with `explain`, every decided value with its reason."""
    plan = rendered.plan
    if form == "json":
        content: dict[str, Any] = {
            "name": plan.name,
            "output": str(folder),
            "files": [
                {"name": name, "state": state, "sha256": digest(rendered.files[name])}
                for name, state in sorted(written.states.items())
                if name in rendered.files
            ],
            "removed": sorted(name for name, state in written.states.items() if state == "removed"),
            "findings": [finding_json(finding) for finding in rendered.findings],
        }
        if explain:
            content["resolved"] = [
                {"path": d.path, "value": _jsonable(d.value), "reason": d.reason} for d in plan.decisions
            ]
        print(json.dumps(content, indent=2, ensure_ascii=False))
        return
    show_findings(rendered.findings, sources=rendered.checked.loaded.document.sources)
    say(summary(plan))
    for name, state in sorted(written.states.items()):
        say(f"  {state:<7} {folder / name}")
    for name, kept in sorted(written.kept_edits.items()):
        say(f"  note: {folder / name} had been edited by hand; the edit is kept as {kept}")
    if explain:
        say()
        for decision in plan.decisions:
            say(f"{decision.path} = {printable(_short(decision.value))}")
            say(f"    {printable(decision.reason)}")


def show_check(found: list[Difference], folder: Path, lock: Lock, *, replayed: tuple[str, ...], form: str) -> None:
    """Print how a folder differs from what its recipe renders to; `replayed` are overrides taken from the lock."""
    if form == "json":
        print(
            json.dumps(
                {
                    "output": str(folder),
                    "same": not found,
                    "overrides_from_lock": list(replayed),
                    "differences": [{"name": d.name, "what": d.what, "diff": d.diff} for d in found],
                },
                indent=2,
                ensure_ascii=False,
            )
        )
        return
    for difference in found:
        say(f"{folder / difference.name} {difference.what}")
        if difference.diff:
            say(difference.diff.rstrip("\n"))
    with_overrides = f" with {' '.join(f'--set {text}' for text in replayed)}, as its lock says" if replayed else ""
    if not found:
        say(f"{folder} is what the recipe renders to{with_overrides}")
    elif replayed:
        say(f"note: compared{with_overrides}")
    if lock.dsgen != dsgen.__version__:
        say(f"note: rendered by dsgen {lock.dsgen}, this is {dsgen.__version__}")


def summary(plan: Plan) -> str:
    """One line: the model, the ranks, the stage and the batch."""
    accelerators = f"{plan.world_size} x {plan.device.id}" + (f" on {plan.nodes} nodes" if plan.nodes > 1 else "")
    offloads = [
        name
        for name, where in (("optimizer", plan.offload_optimizer), ("parameters", plan.offload_parameters))
        if where != "none"
    ]
    parts = [
        f"{plan.name}: {plan.architecture.name}, {plan.parameters.total:,} parameters"
        + (f" ({plan.trainable_parameters:,} trained)" if plan.adapter else ""),
        accelerators,
        f"ZeRO-{plan.stage}" + (f" with {' and '.join(offloads)} offloaded" if offloads else ""),
        plan.precision,
        f"{plan.global_batch} x {plan.sequence_length} tokens per step "
        f"(micro {plan.micro_batch} x accumulation {plan.accumulation} x {plan.data_parallel} ranks)",
    ]
    return ", ".join(parts)


def _jsonable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _short(value: Any) -> str:
    text = json.dumps(_jsonable(value), ensure_ascii=False, default=str)
    return text if len(text) <= 120 else text[:117] + "..."
