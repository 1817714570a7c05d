"""Starts every rank in a session of its own, as torchrun does."""

import json
import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    words = sys.argv[1:]
    options: dict[str, str] = {}
    while words[0].startswith("--"):
        name = words.pop(0)
        options[name] = words.pop(0)
    if os.environ.get("FAKE_RECORD"):
        record = {"argv": sys.argv[1:], "environ": dict(os.environ)}
        Path(os.environ["FAKE_RECORD"]).write_text(json.dumps(record))
    ranks = []
    for rank in range(int(options["--nproc_per_node"])):
        environ = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        ranks.append(subprocess.Popen([sys.executable, "-u", *words], env=environ, start_new_session=True))
    codes = [rank.wait() for rank in ranks]
    sys.exit(1 if any(codes) else 0)


main()
