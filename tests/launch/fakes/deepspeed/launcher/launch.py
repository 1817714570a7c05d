"""Starts the ranks and treats them as DeepSpeed's launch.py does (0.19.8): TERM, some time, KILL."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType


def main() -> None:
    port, devices, script, *arguments = sys.argv[1:]
    ranks = []
    for rank in range(len(devices.split(","))):
        environ = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(len(devices.split(",")))}
        environ |= {"MASTER_PORT": port, "MASTER_ADDR": "127.0.0.1", "ASCEND_RT_VISIBLE_DEVICES": devices}
        ranks.append(subprocess.Popen([sys.executable, "-u", script, *arguments], env=environ))

    def end(number: int, frame: FrameType | None, code: int = 1) -> None:
        if number and os.environ.get("FAKE_LAUNCHER_TERM"):
            Path(os.environ["FAKE_LAUNCHER_TERM"]).touch()
        for rank in ranks:
            rank.terminate()
        time.sleep(0.3)
        for rank in ranks:
            rank.kill()
        sys.exit(code)

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)
    while any(rank.poll() is None for rank in ranks):
        for rank in ranks:
            if rank.poll():
                end(0, None, rank.returncode)
        time.sleep(0.05)
    for rank in ranks:
        if rank.returncode:
            sys.exit(rank.returncode)


main()
