"""`dsgen calibrate RUN_DIR...`: from finished runs to a device profile."""

from __future__ import annotations

from pathlib import Path

import click

from dsgen.findings import ExitCode


@click.command("calibrate")
@click.argument("run_dirs", metavar="RUN_DIR...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to write the profile, instead of where estimates find it by themselves.",
)
@click.option("--simulated", is_flag=True, help="Take runs on the simulated NPU, and no others; needs --output.")
def command(run_dirs: tuple[Path, ...], output: Path | None, simulated: bool) -> int:
    """Turn finished runs of one kind of device into a profile of it.

    Later estimates for that device use what was measured, the device's context and what torch's allocator reserves, in
    place of what is assumed, and name the profile. It stands in dsgen/profiles under XDG_CONFIG_HOME or ~/.config.
    """
    if simulated and output is None:
        raise click.UsageError("--simulated needs --output: estimates for real devices must not find such a profile")
    if output is not None and not output.parent.is_dir():
        from dsgen.findings import DsgenError
        from dsgen.report.console import printable

        kind = "is no folder" if output.parent.exists() else "does not exist"
        raise DsgenError(
            f"--output {printable(str(output))}: the folder {printable(str(output.parent))} {kind}; "
            "nothing was written",
            help="make the folder first, or name a file in one that exists",
        )
    from dsgen.launch.calibrate import calibrate
    from dsgen.planner.profiles import default_path, write_profile
    from dsgen.report.calibration import show_profile

    profile = calibrate(run_dirs, simulated=simulated)
    path = output if output is not None else default_path(profile.device)
    write_profile(profile, path)
    show_profile(profile, path)
    return int(ExitCode.OK)
