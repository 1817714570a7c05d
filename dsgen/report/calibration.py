"""A device profile as text."""

from __future__ import annotations

from pathlib import Path

from dsgen.planner.profiles import Profile
from dsgen.report.console import in_bytes, printable, say, table


def show_profile(profile: Profile, path: Path) -> None:
    """Print what each run showed, what the profile says, and where it stands."""
    rows: list[tuple[str, ...]] = [("run", "estimated", "measured", "error", "reserved", "factor", "context")]
    for run in profile.runs:
        rows.append(
            (
                printable(run.run),
                in_bytes(run.allocated_estimated_bytes),
                in_bytes(run.allocated_measured_bytes),
                f"{run.error:+.1%}",
                in_bytes(run.reserved_bytes),
                "-" if run.reserved_factor is None else f"{run.reserved_factor:.2f}",
                in_bytes(run.context_bytes),
            )
        )
    say(table(rows))
    say()
    say(f"{profile.device}{', simulated' if profile.simulated else ''}: context {in_bytes(profile.context_bytes)}")
    if profile.reserved_factors is None:
        say("reserved: told by none of these runs (tensors of 1 GiB and more, dsgen's own loop)")
    else:
        low, high = profile.reserved_factors
        say(f"reserved: allocated x {low:.2f} to {high:.2f}, where there is room")
    say(f"profile: {path}")
