"""`dsgen estimate`: will it fit, where is memory highest, and what would make it fit?"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dsgen.cli.options import profile_option, set_option
from dsgen.findings import ExitCode

if TYPE_CHECKING:
    from dsgen.recipe.load import LoadedRecipe


@click.command("estimate")
@click.argument("recipe", type=click.Path(path_type=Path), required=False)
@set_option
@click.option(
    "--compare",
    type=click.Choice(["stage"]),
    help="Show every ZeRO stage, offload and activation checkpointing side by side.",
)
@click.option(
    "--ds-config",
    "config",
    type=click.Path(path_type=Path, allow_dash=True),
    metavar="FILE",
    help="Estimate a ds_config.json instead of a recipe (`-` for standard input); the options below say the rest.",
)
@click.option("--model", metavar="NAME", help="Model: a preset, a size, or a config.json (or its folder).")
@click.option("--device", metavar="NAME", help="Device; see `dsgen devices`.")
@click.option("--world-size", type=click.IntRange(1), metavar="N", help="Ranks of the whole job.")
@click.option("--per-node", type=click.IntRange(1), metavar="N", help="Ranks on each node.")
@click.option("--micro-batch", type=click.IntRange(1), metavar="N", help="Sequences per rank in one forward pass.")
@click.option("--sequence-length", type=click.IntRange(1), metavar="N", help="Tokens in one training sequence.")
@click.option("--client-optimizer", metavar="TYPE", help="Optimizer that the script passes to initialize.")
@profile_option
@click.option(
    "--format", "form", type=click.Choice(["text", "json", "html"]), default="text", help="Form of the output."
)
@click.option(
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Write into FILE, which is overwritten (default: standard output).",
)
def command(
    recipe: Path | None,
    overrides: tuple[str, ...],
    compare: str | None,
    config: Path | None,
    model: str | None,
    device: str | None,
    world_size: int | None,
    per_node: int | None,
    micro_batch: int | None,
    sequence_length: int | None,
    client_optimizer: str | None,
    profile: str | None,
    form: str,
    output: Path | None,
) -> int:
    """Say how much device and host memory RECIPE needs, phase by phase and part by part.

    A job that does not fit, or only just, gets the cheapest changes that make it fit. Exit code 1 when it does not fit
    its devices or its hosts.
    """
    around = {
        "--model": model,
        "--device": device,
        "--world-size": world_size,
        "--per-node": per_node,
        "--micro-batch": micro_batch,
        "--sequence-length": sequence_length,
        "--client-optimizer": client_optimizer,
    }
    if (recipe is None) == (config is None):
        raise click.UsageError("give a RECIPE, or a config with --ds-config FILE")
    if recipe is not None:
        stray = [name for name, value in around.items() if value is not None]
        if stray:
            raise click.UsageError(f"{stray[0]} is for --ds-config: a recipe says it itself; change it with --set")
    elif model is None or device is None:
        raise click.UsageError("a ds_config.json says neither the model nor the device: give --model and --device")
    elif world_size is not None and per_node is not None and world_size % per_node:
        raise click.UsageError(f"--world-size {world_size} is not a multiple of --per-node {per_node}")
    from dsgen.report.findings import json_errors

    with json_errors() if form == "json" else nullcontext():
        from dsgen.memory.estimate import estimate
        from dsgen.planner.advice import advise
        from dsgen.planner.compare import compare_stages
        from dsgen.planner.profiles import find_calibration
        from dsgen.planner.variant import Variant
        from dsgen.recipe.check import check_recipe
        from dsgen.recipe.load import load_recipe
        from dsgen.recipe.resolve import resolve
        from dsgen.report.comparison import show_comparison
        from dsgen.report.estimate import show_estimate
        from dsgen.report.output import printed_to

        _check_text((*overrides, model or ""))
        assumed: tuple[str, ...] = ()
        if recipe is not None:
            loaded = load_recipe(recipe, overrides)
        else:
            assert config is not None and model is not None and device is not None
            loaded, assumed = _of_config(
                config, model, device, world_size, per_node, micro_batch, sequence_length, client_optimizer, overrides
            )
        plan = resolve(check_recipe(loaded, to_run=False))
        base = Variant(overrides=(), plan=plan, report=estimate(plan, find_calibration(plan.device.id, profile)))
        with printed_to(output, inputs=(recipe, config)):
            if form == "html":
                from dsgen.report.estimate_html import comparison_page, estimate_page

                if compare is not None:
                    print(comparison_page(compare_stages(loaded, base), plan, assumed), end="")
                else:
                    print(estimate_page(base.report, plan, advise(loaded, base), assumed), end="")
            elif compare is not None:
                show_comparison(compare_stages(loaded, base), plan, assumed, form=form)
            else:
                show_estimate(base.report, plan, advise(loaded, base), assumed, form=form)
        return int(ExitCode.FINDINGS if base.report.verdict == "does not fit" else ExitCode.OK)


def _check_text(words: tuple[str, ...]) -> None:
    """Raises DsgenError for bytes of the command line that are no characters in the encoding of the locale."""
    import sys

    from dsgen.findings import DsgenError

    for word in words:
        if any("\ud800" <= c <= "\udfff" for c in word):
            raise DsgenError(
                f"{word!a} is no text in the encoding of this locale, {sys.getfilesystemencoding()}",
                help="take a UTF-8 locale, for example LC_ALL=C.UTF-8",
            )


def _of_config(
    config: Path,
    model: str,
    device: str,
    world_size: int | None,
    per_node: int | None,
    micro_batch: int | None,
    sequence_length: int | None,
    client_optimizer: str | None,
    overrides: tuple[str, ...],
) -> tuple[LoadedRecipe, tuple[str, ...]]:
    import sys
    from dataclasses import replace

    from dsgen.documents.errors import DocumentError
    from dsgen.documents.json_reader import read_json_bytes
    from dsgen.documents.yaml_reader import read_bytes
    from dsgen.dsconfig.job import job_named
    from dsgen.dsconfig.kinds import kind_by_content
    from dsgen.dsconfig.recipe_from import Surroundings, recipe_name
    from dsgen.planner.from_config import recipe_of_config

    piped = str(config) == "-"
    data = sys.stdin.buffer.read() if piped else read_bytes(config)
    document = read_json_bytes(data, "<stdin>" if piped else str(config))
    if any(note.kind == "empty" for note in document.notes):
        raise DocumentError("is empty", document.at(()), help="write a config; {} is one with DeepSpeed's defaults")
    if document.value and kind_by_content(document.value, yaml=False) is None:
        text = "holds no setting of DeepSpeed's: an estimate of it would be one of the defaults"
        raise DocumentError(text, document.at(()), help="name a ds_config.json; {} is one with DeepSpeed's defaults")
    job = job_named(world_size=world_size, device=device, model=model, client_optimizer=client_optimizer)
    name = recipe_name("config" if piped else config.stem)
    around = Surroundings(name=name, model=model, device=device, per_node=per_node)
    return recipe_of_config(document, replace(job, sequence_length=sequence_length), around, micro_batch, overrides)
