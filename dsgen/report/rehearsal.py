"""A rehearsal in words and as JSON."""

from __future__ import annotations

import json

import click

from dsgen.rehearse.rehearsal import Outcome, Prepared
from dsgen.rehearse.stand_in import SAVED_AT, STEPS

PROVES = (
    "the rendered command, environment and ds_config.json are taken by DeepSpeed's NPU accelerator, by torch_npu and "
    "by its HCCL process group; tensors live on npu devices"
)
DOES_NOT_PROVE = (
    "speed, memory, accuracy, CANN itself, ssh to other nodes, time-outs, or anything else of Ascend hardware: no NPU "
    "took part"
)


def show_plan(prepared: Prepared) -> None:
    """What is rehearsed, and how it is smaller."""
    plan = prepared.plan
    click.echo(f"rehearsing {plan.name} on the simulated NPU ({plan.device.id}), with less of everything:")
    for change in prepared.stand_in.changes:
        click.echo(f"  {change}")


def show_outcome(prepared: Prepared, outcome: Outcome) -> None:
    """How it ended, what that proves and what not."""
    click.echo("")
    click.echo(f"rehearsal of {prepared.plan.name} on the simulated NPU: {_verdict(outcome)}")
    if outcome.well:
        losses = " ".join(f"{loss:.4f}" if loss is not None else "nan" for loss in outcome.losses)
        click.echo(f"  backend {outcome.backend}, ZeRO stage {outcome.zero_stage}, losses {losses}")
        if outcome.continued and not outcome.repeats:
            again = " ".join(str(loss) for loss in outcome.again)
            click.echo(f"  continued: {again}; at ZeRO stage 0 in bf16 the optimizer does not restore itself exactly")
        if outcome.device_peak_bytes is not None:
            mib = outcome.device_peak_bytes / 2**20
            click.echo(f"  at most {mib:,.0f} MiB of the simulated device in use, as torch_npu counts it")
        click.echo(f"  it proves: {_proves(prepared, outcome)}")
        click.echo(f"  it does not prove: {DOES_NOT_PROVE}")
    click.echo(f"  everything of it: {outcome.folder}")


def as_json(prepared: Prepared, outcome: Outcome) -> str:
    """The same as one JSON object."""
    return json.dumps(
        {
            "name": prepared.plan.name,
            "simulated": True,
            "well": outcome.well,
            "verdict": _verdict(outcome),
            "changes": list(prepared.stand_in.changes),
            "losses": list(outcome.losses),
            "losses_from_checkpoint": list(outcome.again),
            "same_losses": outcome.repeats,
            "backend": outcome.backend,
            "zero_stage": outcome.zero_stage,
            "device_peak_bytes": outcome.device_peak_bytes,
            "folder": str(outcome.folder),
        },
        indent=2,
    )


def _verdict(outcome: Outcome) -> str:
    if not outcome.well:
        part = "when it went on from the checkpoint" if outcome.continued else "in its first part"
        return f"failed {part} (exit code {outcome.code})"
    if not outcome.continued:
        return f"your script ended well; it saved no checkpoint of step {SAVED_AT}, so going on was not rehearsed"
    same = "the same losses" if outcome.repeats else "other losses"
    return f"ended well: {STEPS} steps; continued from the checkpoint of step {SAVED_AT} in new processes, with {same}"


def _proves(prepared: Prepared, outcome: Outcome) -> str:
    plan = prepared.plan
    offloads = plan.offload_optimizer != "none" or plan.offload_parameters != "none"
    worked = ["offload"] * offloads + ["checkpoint", "resume"] * outcome.continued
    return PROVES + (f"; {', '.join(worked)} work" if worked else "")
