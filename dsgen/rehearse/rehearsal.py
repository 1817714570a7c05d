"""Running a rehearsal: the stand-in is launched, saved and continued on the simulated NPU, as a user would do it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from dsgen.ascend_sim import build, simulated_environment, why_not
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
METRICS = "metrics.jsonl"


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


def make_folder(prepared: Prepared) -> Path:
    """The rehearsal's folder, with the stand-in in it. Raises DsgenError, before anything is written, where the
    simulated NPU cannot be built, and where no folder can be made."""
    reason = why_not()
    if reason is not None:
        raise DsgenError(reason)
    help = "start from a folder that you can write to"
    folder = new_run_folder(Path.cwd() / FOLDER, prepared.plan.name, help=help)
    write_stand_in(prepared, folder)
    return folder


def rehearse(prepared: Prepared, folder: Path, *, quiet: bool = False) -> Outcome:
    """Train the stand-in that `make_folder` made, then once more from the checkpoint that it saved on the way.

    Builds the simulated NPU when it is not built yet. What the runs say goes to this process's output, with `quiet`
    to its error output. Raises DsgenError where the simulated NPU cannot be built.
    """
    environ = {**os.environ, **simulated_environment(build(), **_device(prepared.plan.device))}
    run = folder / "run"

    def launch(*words: str) -> int:
        # From the user's own folder: that is where a real job starts, and where the paths that are shown count from.
        command = [sys.executable, "-m", "dsgen", "launch", *words]
        output = sys.stderr if quiet else None
        return subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, stdout=output, check=False).returncode

    code = launch(str(folder / RECIPE), "--run-dir", str(run))
    losses, report = _losses(run), _report(run)
    again: tuple[float | None, ...] = ()
    own_script = prepared.plan.entrypoint is not None
    saved = (run / "checkpoints" / f"step-{SAVED_AT:08d}").is_dir()
    continued = code == 0 and (saved or not own_script)
    if continued:
        # The newest checkpoint is then the one on the way, as after a crash.
        shutil.rmtree(run / "checkpoints" / f"step-{STEPS:08d}", ignore_errors=True)
        with suppress(FileNotFoundError):
            (run / METRICS).rename(folder / f"first-{METRICS}")
        code = launch(str(run), "--resume")
        again = _losses(run)
    return Outcome(
        folder=folder,
        code=code,
        losses=losses,
        again=again,
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
    path = run / METRICS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return tuple(json.loads(line)["loss"] for line in lines)


def _report(run: Path) -> dict[str, Any]:
    path = run / "report.json"
    report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return report
