"""Running a rehearsal: the stand-in is launched, saved and continued on the simulated NPU, as a user would do it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dsgen.ascend_sim import build, simulated_environment
from dsgen.catalog.devices import Device
from dsgen.documents.atomic import write_set
from dsgen.findings import DsgenError
from dsgen.launch.run_folder import new_run_folder
from dsgen.recipe.check import CheckedRecipe, check_recipe
from dsgen.recipe.load import load_recipe, rebased
from dsgen.recipe.plan import Plan
from dsgen.recipe.resolve import resolve
from dsgen.rehearse.stand_in import SAVED_AT, STEPS, StandIn, stand_in

FOLDER = Path("rehearsals")
"""Where rehearsals stand, under the current folder."""

RECIPE = "rehearsal.yaml"


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A job and its stand-in; nothing is written yet."""

    checked: CheckedRecipe
    plan: Plan
    stand_in: StandIn


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of a rehearsal."""

    folder: Path
    code: int
    """Exit code of the part that ended it."""
    losses: tuple[float | None, ...] = ()
    """Of the whole training."""
    again: tuple[float | None, ...] = ()
    """Of the steps after the checkpoint, trained once more from it."""
    backend: str | None = None
    zero_stage: int | None = None
    device_peak_bytes: int | None = None
    """As torch_npu counts it."""

    own_script: bool = False
    """Whether the user's own script trained, which need not save when the recipe says."""
    continued: bool = False
    """Whether the job went on from a checkpoint."""

    @property
    def well(self) -> bool:
        """Whether the job was trained, saved, continued and ended; of the user's own script, whether it ended well."""
        if self.own_script:
            return self.code == 0
        return self.code == 0 and (len(self.losses), len(self.again)) == (STEPS, STEPS - SAVED_AT)

    @property
    def repeats(self) -> bool:
        """Whether the continued training gave the very losses of the unbroken one."""
        return self.continued and self.code == 0 and self.again == self.losses[SAVED_AT:]


def prepare(path: Path, overrides: tuple[str, ...]) -> Prepared:
    """Check the recipe and shrink it. Raises DocumentError, FindingsError, or DsgenError where it is not for Ascend."""
    checked = check_recipe(load_recipe(path, overrides))
    plan = resolve(checked)
    return Prepared(checked=checked, plan=plan, stand_in=stand_in(checked, plan))


def rehearse(prepared: Prepared, *, quiet: bool = False) -> Outcome:
    """Train the stand-in, then once more from the checkpoint that it saved on the way.

    Builds the simulated NPU when it is not built yet. What the runs say goes to this process's output, with `quiet`
    to its error output. Raises DsgenError where the simulated NPU cannot be built or the folder not be written.
    """
    toolkit = build()
    folder = new_run_folder(Path.cwd() / FOLDER, prepared.plan.name)
    recipe = write_stand_in(prepared, folder)
    environ = {**os.environ, **simulated_environment(toolkit, **_device(prepared.plan.device))}
    runs = folder / "runs" / str(prepared.stand_in.fields["name"])
    whole, again = runs / "001", runs / "002"

    def launch(*words: str) -> int:
        command = [sys.executable, "-m", "dsgen", "launch", *words, recipe.name]
        output = sys.stderr if quiet else None
        return subprocess.run(
            command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, stdout=output, check=False
        ).returncode

    code = launch()
    own_script = prepared.plan.entrypoint is not None
    saved = (whole / "checkpoints" / f"step-{SAVED_AT:08d}").is_dir()
    continued = code == 0 and (saved or not own_script)
    if continued:
        # The newest checkpoint is then the one on the way, as after a crash; a new run goes on from it.
        shutil.rmtree(whole / "checkpoints" / f"step-{STEPS:08d}", ignore_errors=True)
        code = launch("--resume")
    report = _report(whole)
    return Outcome(
        folder=folder,
        code=code,
        losses=_losses(whole),
        again=_losses(again),
        own_script=own_script,
        continued=continued,
        backend=report.get("backend"),
        zero_stage=report.get("zero_stage"),
        device_peak_bytes=report.get("device_peak_bytes"),
    )


def write_stand_in(prepared: Prepared, folder: Path) -> Path:
    """The stand-in as a recipe that extends the real one, overrides and all."""
    loaded = prepared.checked.loaded
    whole = rebased(loaded.document, loaded.folder.absolute(), folder).value
    changes = "".join(f"#   {change}\n" for change in prepared.stand_in.changes)
    texts = {
        "recipe.yaml": "# The recipe that is rehearsed, with what it extends and its overrides.\n" + _yaml(whole),
        RECIPE: f"# Written by `dsgen rehearse`. What is smaller than in recipe.yaml:\n{changes}"
        + _yaml({"schema": 1, "extends": "recipe.yaml", **prepared.stand_in.fields}),
    }
    try:
        write_set(folder, {name: (text.encode(), False) for name, text in texts.items()})
    except OSError as error:
        raise DsgenError(f"{folder} cannot be written: {error.strerror}") from error
    return folder / RECIPE


def _yaml(fields: dict[str, Any]) -> str:
    return yaml.safe_dump(fields, sort_keys=False, allow_unicode=True)


def _device(device: Device) -> dict[str, Any]:
    """The simulated device of the recipe: its SoC, its memory, as many as a server has."""
    soc = next((name for name in device.names if name.startswith("Ascend910")), None)
    return {"devices": device.devices_per_server, "soc": soc, "hbm_bytes": device.usable_bytes}


def _losses(run: Path) -> tuple[float | None, ...]:
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return tuple(json.loads(line)["loss"] for line in lines)


def _report(run: Path) -> dict[str, Any]:
    path = run / "report.json"
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return report
