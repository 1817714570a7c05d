"""Behaves towards its parent and its child as DeepSpeed's runner on one node does (0.19.8)."""

import json
import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    words = sys.argv[1:]
    options: dict[str, str] = {}
    flags = {"--no_local_rank"}
    while words[0].startswith("--"):
        name = words.pop(0)
        options[name] = "" if name in flags else words.pop(0)
    if "--include" in options:
        devices = options["--include"].removeprefix("localhost:").split(",")
    else:
        devices = [str(index) for index in range(int(options["--num_gpus"]))]
    if os.environ.get("FAKE_RECORD"):
        record = {"argv": sys.argv[1:], "environ": dict(os.environ)}
        Path(os.environ["FAKE_RECORD"]).write_text(json.dumps(record))
    launch = [sys.executable, "-m", "deepspeed.launcher.launch", options["--master_port"], ",".join(devices), *words]
    child = subprocess.Popen(launch)
    child.wait()
    # As the original: a child that a signal ended has a negative code, and the runner exits with 0.
    if child.returncode > 0:
        sys.exit(child.returncode)


main()
