"""CPU seconds of `dsgen lint` on one file and on many, and whether the time grows with the number of files.

    python benchmarks/lint.py [--files N]

The files are made from the configs of docs/examples: every one differs, a third of them hold mistakes.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parent.parent / "docs" / "examples"


def write_files(folder: Path, count: int) -> None:
    """`count` configs, all different."""
    sound = json.loads((EXAMPLES / "zero2.json").read_text())
    wrong = json.loads((EXAMPLES / "mistakes.json").read_text())
    for number in range(count):
        config = dict(wrong if number % 3 == 0 else sound)
        config["train_batch_size"] = 8 * (number + 1)
        config["train_micro_batch_size_per_gpu"] = 1
        if number % 7 == 0:
            config[f"unknown_key_{number}"] = number
        (folder / f"{number:05}.json").write_text(json.dumps(config, indent=2))


def cpu_seconds(path: Path) -> float:
    """User and system time of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "dsgen", "lint", str(path)], stdout=subprocess.DEVNULL, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", type=int, default=1000)
    count = parser.parse_args().files
    with tempfile.TemporaryDirectory() as name:
        one, half, all_ = (Path(name) / part for part in ("one", "half", "all"))
        for folder, number in ((one, 1), (half, count // 2), (all_, count)):
            folder.mkdir()
            write_files(folder, number)
        cpu_seconds(one)
        for folder, number in ((one, 1), (half, count // 2), (all_, count)):
            times = [cpu_seconds(folder) for _ in range(5)]
            print(
                f"{number:6,} files: median {statistics.median(times):.3f} s CPU ({min(times):.3f} to {max(times):.3f})"
            )


if __name__ == "__main__":
    main()
