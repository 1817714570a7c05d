"""For a training loop of the user's own: the files of a run, the progress that people see, and stopping in good order.

`dsgen.runtime.train` does all this by itself; a script that trains in its own way calls these.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsgen.ascend_sim.environment import is_simulated
from dsgen.memory.measured import ESTIMATE, compare
from dsgen.runtime.distributed import gather

if TYPE_CHECKING:
    from dsgen.runtime.session import Session


def begin(run: Session, steps: int, *, done: int = 0) -> None:
    """Tell that training begins: `steps` optimizer steps in all, of which `done` were done by an earlier run.

    Rows of metrics.jsonl after step `done` are dropped.
    """
    run.journal.event("plan", steps=steps)
    run.journal.open_metrics(keep_steps=done)
    run.journal.phase("train")


def log_step(run: Session, step: int, loss: Any, **numbers: float | None) -> bool:
    """Write one row of metrics.jsonl; returns whether anybody asked the run to stop. A collective.

    `loss` is this rank's mean loss of the step, a number or a scalar tensor on the device; the row holds the mean over
    ranks. `numbers` are added as they are, rank 0's: `lr`, `grad_norm`, `tokens_per_second` are shown to who watches.
    """
    rows = gather([loss, run.wants_to_stop()], run.device)
    mean = sum(row[0] for row in rows) / len(rows)
    run.journal.metrics({"step": step, "loss": mean, **numbers})
    if run.ranks.rank == 0 and step % run.settings.log_every_steps == 0:
        more = "".join(f"  {name} {value:.4g}" for name, value in numbers.items() if value is not None)
        run.console.line(f"step {step}  loss {mean:.4f}{more}")
    return any(row[1] for row in rows)


def finish(run: Session, step: int, steps: int, **fields: Any) -> None:
    """Write report.json: `step` of `steps` optimizer steps are done; `fields` are added to the report."""
    status = "finished" if step >= steps else "stopped"
    run.journal.phase("done")
    run.journal.report(
        {
            "status": status,
            "steps": step,
            "planned_steps": steps,
            "first_loss": run.journal.first_loss,
            "last_loss": run.journal.last_loss,
            "seconds": round(time.time() - run.started, 3),
            # Not every rank need come here, so this is what rank 0 knows by itself.
            "memory": beside_estimate(run, run.memory.report(None)),
            **fields,
            **about(run),
        }
    )
    run.journal.event("end", status=status, step=step)


def beside_estimate(run: Session, device: dict[str, Any] | None, host_peak_bytes: int | None = None) -> dict[str, Any]:
    """What a report says of memory: the device's (None on CPU, whose accelerator does not count), and, where the
    launcher left an estimate in the run folder, both figures of everything that was estimated and measured."""
    return {"device": device, "compared": compare(_estimate(run.run_dir), device, host_peak_bytes)}


def _estimate(run_dir: Path) -> dict[str, Any]:
    try:
        estimate = json.loads((run_dir / ESTIMATE).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return estimate if isinstance(estimate, dict) else {}


def about(run: Session) -> dict[str, Any]:
    """What a report says of the job and of the software that ran it."""
    return {
        "name": run.settings.name,
        "accelerator": run.settings.accelerator,
        "simulated": is_simulated(os.environ),
        "backend": run.settings.backend,
        "world_size": run.settings.world_size,
        "zero_stage": run.zero_stage,
        "versions": _versions(),
    }


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("dsgen", "torch", "deepspeed", "transformers", "torch_npu", "peft"):
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions
