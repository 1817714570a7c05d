"""`dsgen lint FILE...`: what is wrong with DeepSpeed configs, recipes, and the files of a launch."""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Any

import click

from dsgen.findings import DsgenError, ExitCode

FORMS = ("text", "json", "github", "sarif")


@click.command("lint")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True, readable=False))
@click.option(
    "--deepspeed", metavar="VERSION", help="DeepSpeed that reads the config: a version from 0.14, or installed."
)
@click.option("--framework", type=click.Choice(["native", "transformers"]), help="Who hands the config to DeepSpeed.")
@click.option("--world-size", type=click.IntRange(1), metavar="N", help="Number of ranks of the job.")
@click.option("--model", metavar="NAME", help="Model that is trained: a preset, a size, or a config.json.")
@click.option("--device", metavar="NAME", help="Device that is trained on; see `dsgen devices`.")
@click.option("--client-optimizer", metavar="TYPE", help="Optimizer that the script passes to initialize, or none.")
@click.option("--select", multiple=True, metavar="CODES", help="Only these codes or families, for example ZRO,KEY001.")
@click.option("--ignore", multiple=True, metavar="CODES", help="Not these codes or families.")
@click.option("--strict", is_flag=True, help="Exit 1 for warnings too.")
@click.option("--fix", is_flag=True, help="Repair in the files what is safe to repair.")
@click.option("--diff", is_flag=True, help="Show what --fix would change; write nothing.")
@click.option("--format", "form", type=click.Choice(FORMS), default="text", help="Form of the output.")
@click.option("--filter", "filtered", is_flag=True, help="Pass over named files that are excluded or no config.")
@click.option("--stdin-name", default="<stdin>", metavar="NAME", help="Name of the file that `-` stands for.")
def command(
    files: tuple[Path, ...],
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    strict: bool,
    fix: bool,
    diff: bool,
    form: str,
    filtered: bool,
    stdin_name: str,
    **job: Any,
) -> int:
    """Check ds_config.json files (JSON, or the hjson that DeepSpeed reads), recipes, accelerate configs, hostfiles and
    .deepspeed_env files, and say what is wrong, where, what will happen and what to write.

    A folder stands for the configs in it, `-` for standard input. Exit code 1 when a finding is an error, 2 when a
    file cannot be read.
    """
    gc.disable()
    from dsgen.lint.run import Request, lint_all
    from dsgen.report.lint import show_lint

    if fix and Path("-") in files:
        raise DsgenError("--fix cannot write to standard input", help="use --diff, or name the file")
    request = Request(
        job={name: value for name, value in job.items() if value is not None},
        select=_codes(select),
        ignore=_codes(ignore),
        filtered=filtered,
        stdin_name=stdin_name,
        stdin=sys.stdin.buffer.read if Path("-") in files else None,
    )
    linted = lint_all(files, request)
    if fix or diff:
        from dsgen.lint.fix import mend
        from dsgen.report.lint import show_mended

        mended = mend(linted, request, write=fix and not diff)
        show_mended(mended, diff=diff, form=form)
        if diff:
            changes = any(each.repairs for each in mended)
            return int(ExitCode.FINDINGS if changes else ExitCode.OK)
        linted = [each.after for each in mended]
    show_lint(linted, form=form)
    if any(each.document is None for each in linted):
        return int(ExitCode.USAGE)
    worst = ("error", "warning") if strict else ("error",)
    bad = any(finding.severity.value in worst for each in linted for finding in each.findings)
    return int(ExitCode.FINDINGS if bad else ExitCode.OK)


def _codes(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(code.strip().upper() for value in values for code in value.split(",") if code.strip())
