"""`dsgen import DS_CONFIG`: a recipe from a ds_config.json."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import click

from dsgen.findings import DsgenError, ExitCode


@click.command("import")
@click.argument("config", metavar="DS_CONFIG", type=click.Path(path_type=Path, allow_dash=True))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False, allow_dash=True),
    metavar="FILE",
    help="Recipe to write (default: standard output).",
)
@click.option("--model", metavar="NAME", help="Model: a preset, a size, or a config.json (or its folder).")
@click.option("--device", metavar="NAME", help="Device; see `dsgen devices`.")
@click.option("--world-size", type=click.IntRange(1), metavar="N", help="Ranks of the whole job.")
@click.option("--per-node", type=click.IntRange(1), metavar="N", help="Ranks on each node.")
@click.option("--sequence-length", type=click.IntRange(1), metavar="N", help="Tokens in one training sequence.")
@click.option("--steps", type=click.IntRange(1), metavar="N", help="Optimizer steps to train.")
@click.option("--data", multiple=True, metavar="FILES", help="Training text; may be given more than once.")
@click.option("--tokenizer", metavar="NAME", help="A tokenizer's folder, its name on a hub, or bytes.")
@click.option("--weights", metavar="NAME", help="Folder of the weights to start from, or their name on a hub.")
@click.option("--name", metavar="NAME", help="Name of the job (default: that of the file).")
@click.option("--deepspeed", metavar="VERSION", help="DeepSpeed whose defaults the config counts on.")
@click.option("--framework", type=click.Choice(["native", "transformers"]), help="Who hands the config to DeepSpeed.")
@click.option("--client-optimizer", metavar="TYPE", help="Optimizer that the script passes to initialize.")
@click.option("--force", is_flag=True, help="Overwrite an existing file.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", help="Form of the output.")
def command(
    config: Path,
    output: Path | None,
    model: str | None,
    device: str | None,
    world_size: int | None,
    per_node: int | None,
    sequence_length: int | None,
    steps: int | None,
    data: tuple[str, ...],
    tokenizer: str | None,
    weights: str | None,
    name: str | None,
    deepspeed: str | None,
    framework: str | None,
    client_optimizer: str | None,
    force: bool,
    form: str,
) -> int:
    """Make a recipe from DS_CONFIG (`-` for standard input) that renders back to a config of the same meaning.

    What a ds_config.json cannot say (model, devices, data, length) is taken from options, or left as a placeholder that
    a comment marks. Exit code 1 when the config, or the recipe, holds errors.
    """
    gc.disable()
    from dataclasses import replace

    from dsgen.documents.atomic import write_set
    from dsgen.documents.json_reader import read_json_bytes
    from dsgen.documents.yaml_reader import read_bytes
    from dsgen.dsconfig.imported import import_config
    from dsgen.dsconfig.job import job_named
    from dsgen.dsconfig.recipe_from import Surroundings, recipe_name
    from dsgen.report.imported import show_imported

    target = None if output is None or str(output) == "-" else output
    if target is not None and (target.exists() or target.is_symlink()) and not force:
        raise DsgenError(f"{target} exists: nothing was written", help="choose another file, or overwrite with --force")
    if world_size is not None and per_node is not None and world_size % per_node:
        raise DsgenError(f"--world-size {world_size} is not a multiple of --per-node {per_node}")
    piped = str(config) == "-"
    shown = "<stdin>" if piped else str(config)
    document = read_json_bytes(sys.stdin.buffer.read() if piped else read_bytes(config), shown)
    job = job_named(
        deepspeed=deepspeed,
        framework=framework,
        world_size=world_size,
        device=device,
        model=model,
        client_optimizer=client_optimizer,
    )
    folder = target.parent if target is not None else Path()
    around = Surroundings(
        name=name or recipe_name("imported" if piped else config.stem),
        model=_seen_from(folder, model),
        device=device,
        per_node=per_node,
        weights=_seen_from(folder, weights),
        tokenizer=_seen_from(folder, tokenizer),
        data=tuple(_relative(folder, each) for each in data),
        steps=steps,
    )
    result = import_config(document, replace(job, sequence_length=sequence_length), around, target)
    if target is not None:
        write_set(target.parent, {target.name: (result.text.encode(), False)})
    show_imported(result, target, form=form)
    return int(ExitCode.FINDINGS if result.errors else ExitCode.OK)


def _seen_from(folder: Path, said: str | None) -> str | None:
    """A name, or a path relative to the folder of the recipe."""
    if said is None or (not said.startswith((".", "/", "~")) and not said.endswith(".json")):
        return said
    path = _relative(folder, said)
    return path if path.startswith((".", "/", "~")) else f"./{path}"


def _relative(folder: Path, said: str) -> str:
    return said if said.startswith(("/", "~")) else os.path.relpath(said, folder).replace(os.sep, "/")
