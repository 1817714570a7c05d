"""`dsgen export RUN_DIR`: weights of a run that transformers or peft load. A worker of the training side does it."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import click

from dsgen.cli.options import FOLDER
from dsgen.findings import DsgenError


@click.command("export")
@click.argument("run_dir", type=FOLDER)
@click.option("-o", "--output", type=FOLDER, help="New folder to write into (default: RUN_DIR/export).")
@click.option("--step", type=click.IntRange(min=1), help="Step of the checkpoint (default: the newest whole one).")
@click.option("--dtype", type=click.Choice(["fp32", "fp16", "bf16"]), help="Type of the weights (default: as trained).")
def command(run_dir: Path, output: Path | None, step: int | None, dtype: str | None) -> int:
    """Write the weights of a run's checkpoint as safetensors that transformers loads, or peft for an adapter."""
    if find_spec("torch") is None:
        raise DsgenError("exporting needs the training side of dsgen", help="pip install 'dsgen[train]'")
    words = [str(run_dir), str(output or run_dir / "export")]
    words += [f"--step={step}"] if step is not None else []
    words += [f"--dtype={dtype}"] if dtype is not None else []
    return subprocess.run([sys.executable, "-m", "dsgen.runtime.export", *words], check=False).returncode
