"""CPU time and peak memory of starting dsgen, beside neighbouring tools, all in the same run.

    python benchmarks/startup.py [--rounds N] [--format text|json]

Every command runs in turn, N rounds; the figures are the medians of user + system seconds and of the peak resident
memory as the kernel reports them for the finished process.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
LIMITS = {"dsgen --help": (0.15, 35.0), "dsgen render": (0.35, 60.0)}
"""Command -> most CPU seconds and most MB."""


def commands(folder: Path) -> dict[str, list[str]]:
    """The commands to measure, by name; neighbours only where they are installed."""
    found = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "dsgen --help": [sys.executable, "-m", "dsgen", "--help"],
        "dsgen render": [
            sys.executable, "-m", "dsgen", "render", str(REPOSITORY / "recipes" / "13b-zero2.yaml"), "-o", str(folder)
        ],
    }  # fmt: skip
    for name in ("accelerate", "deepspeed", "ds_report"):
        program = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")
        if program is not None:
            found[f"{name} --help" if name != "ds_report" else name] = [
                program,
                *(["--help"] if name != "ds_report" else []),
            ]
    return found


def measure(command: list[str]) -> tuple[float, float]:
    """CPU seconds and peak resident MB of one run."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--format", choices=["text", "json"], default="text")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measured: dict[str, list[tuple[float, float]]] = {}
        for _ in range(arguments.rounds):
            for name, command in commands(Path(folder) / "out").items():
                measured.setdefault(name, []).append(measure(command))
    rows = [
        {
            "command": name,
            "cpu_seconds": round(statistics.median(cpu for cpu, _ in runs), 3),
            "peak_mb": round(statistics.median(peak for _, peak in runs), 1),
            "limit_cpu_seconds": LIMITS.get(name, (None, None))[0],
            "limit_peak_mb": LIMITS.get(name, (None, None))[1],
        }
        for name, runs in measured.items()
    ]
    if arguments.format == "json":
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        limit = (
            f"  (at most {row['limit_cpu_seconds']} s, {row['limit_peak_mb']} MB)" if row["limit_cpu_seconds"] else ""
        )
        print(f"{row['command']:<20} {row['cpu_seconds']:>7.3f} s CPU {row['peak_mb']:>7.1f} MB{limit}")


if __name__ == "__main__":
    main()
