"""The user's own training script."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View

PLACES = ("ds_config", "run_dir", "base_dir", "folder")
"""What stands for a path of the run between braces in an argument."""


@rule("ENT001")
def script_is_python(view: View) -> Iterator[Problem]:
    """An entrypoint that is no Python file.

    The launchers start it with Python, which would stop at its first line.

    Example (recipe):
        entrypoint: train.sh

    Instead:
        entrypoint: train.py

    Since: dsgen 0.1
    """
    if view.entrypoint is not None and not view.entrypoint.endswith(".py"):
        yield Problem(
            path="entrypoint",
            message=f"{view.entrypoint!r} is no Python file, and the launcher starts it with Python",
            help="name the .py file that calls deepspeed.initialize",
        )


@rule("ENT002", Severity.WARNING)
def places_are_known(view: View) -> Iterator[Problem]:
    """A word in braces that stands for nothing: the script gets it as it is.

    Known are {ds_config}, {run_dir}, {base_dir} and {folder}, which stand for paths of the run.

    Example (recipe):
        entrypoint: {script: train.py, args: ["--out={rundir}"]}

    Instead:
        entrypoint: {script: train.py, args: ["--out={run_dir}"]}

    Since: dsgen 0.1
    """
    for index, argument in enumerate(view.entrypoint_arguments):
        for word in re.findall(r"\{([a-z_]+)\}", argument):
            if word not in PLACES:
                known = ", ".join(f"{{{place}}}" for place in PLACES)
                yield Problem(
                    path=f"entrypoint.args[{index}]",
                    message=f"{{{word}}} stands for no path of the run: the script gets it as it is",
                    help=f"known are {known}",
                )


@rule("ENT003")
def local_rank_needs_deepspeed(view: View) -> Iterator[Problem]:
    """A script that is to get --local_rank, under a launcher that does not pass it.

    DeepSpeed's launcher alone passes it; torchrun sets LOCAL_RANK in the environment instead.

    Example (recipe):
        launcher: torchrun
        entrypoint: {script: train.py, local_rank: true}

    Instead:
        launcher: deepspeed
        entrypoint: {script: train.py, local_rank: true}

    Since: dsgen 0.1
    """
    if view.passes_local_rank and view.launcher not in (None, "deepspeed"):
        yield Problem(
            path="entrypoint.local_rank",
            message=f"the launcher {view.launcher} passes no --local_rank",
            help="read LOCAL_RANK from the environment in the script, or write launcher: deepspeed",
        )


@rule("ENT004", Severity.INFO)
def settings_of_the_rendered_loop(view: View) -> Iterator[Problem]:
    """Settings that only the rendered loop acts on, beside a script of one's own.

    `dsgen.runtime.train` evaluates, saves and reports at these intervals; a loop of one's own has to do this itself.

    Example (recipe):
        entrypoint: train.py
        logging: {memory_snapshot: 5}

    Instead:
        entrypoint: train.py

    Since: dsgen 0.1
    """
    if view.entrypoint is None:
        return
    for path in ("evaluation.every", "memory.reclaim_every", "logging.memory_snapshot", "checkpoint.every_steps"):
        if path in view.intervals:
            yield Problem(
                path=path,
                message=f"only dsgen.runtime.train acts on {path}: a loop of your own has to do this itself",
                help="remove it where the script does not call runtime.train",
            )
