"""Where checks look: captured folders, and commands that end, fail, hang or are not there."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dsgen.doctor.probe import Captured, Machine, captured_name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("npu-smi info", "npu-smi-info.txt"),
        ("npu-smi info -m", "npu-smi-info-m.txt"),
        ("npu-smi info -t proc-mem -i 0 -c 1", "npu-smi-info-t-proc-mem-i-0-c-1.txt"),
        ("hccn_tool -i 0 -link -g", "hccn_tool-i-0-link-g.txt"),
        ("../a --b=c/d", ".._a-b=c_d.txt"),
    ],
)
def test_names_of_captured_outputs(command: str, name: str) -> None:
    assert captured_name(*command.split()) == name


def test_a_captured_folder(capture: Callable[..., Captured]) -> None:
    files = {
        "npu-smi-info-m.txt": "table\nend\n",
        "all.txt": "# hccn_tool -i 0  -link -g\nlink status: UP\n# hccn_tool -i 1 -link -g\nDOWN\n",
        "driver-version.info": "Version=1\n",
        "version.info": "Version=2\n",
    }
    probe = capture(files, environment={"A": "b=c", "EMPTY": ""})
    assert probe.holds_something
    assert probe.run("npu-smi", "info", "-m").text == "table\nend\n"
    assert probe.run("hccn_tool", "-i", "1", "-link", "-g").text == "DOWN"
    assert probe.run("npu-smi", "info").missing
    assert probe.read("/usr/local/Ascend/driver/version.info") == "Version=1\n"
    assert probe.read("/usr/local/Ascend/firmware/version.info") == "Version=2\n"
    assert probe.read("/etc/hccn.conf") is None
    assert (probe.variable("A"), probe.variable("EMPTY"), probe.variable("B")) == ("b=c", "", None)
    assert probe.has_program("hccn_tool") and probe.has_program("npu-smi") and not probe.has_program("nvidia-smi")
    assert not capture({"notes.md": "a\n"}, environment=None, packages=None).holds_something


def test_commands(machine: Callable[..., Machine], tmp_path: Path) -> None:
    count = tmp_path / "count"
    programs = {
        "good": f"echo once >>{count}\nread line\necho $line $1\necho trouble >&2",
        "bad": "echo no\nexit 7",
        "deaf": "exec sleep 60",
    }
    probe = machine(programs=programs)
    for _ in range(2):
        good = probe.run("good", "a", text="said\n")
        assert (good.text, good.problem, good.missing) == ("said a\ntrouble\n", "", False)
    assert count.read_text() == "once\n"
    bad = probe.run("bad")
    assert (bad.text, bad.problem) == ("no\n", "it ended with exit code 7")
    begun = time.monotonic()
    assert probe.run("deaf", seconds=0.2).problem == "no answer within 0 s"
    assert time.monotonic() - begun < 5
    missing = probe.run("gone")
    assert (missing.missing, missing.problem) == (True, "gone is not on PATH")


def test_a_program_that_cannot_be_started(machine: Callable[..., Machine], tmp_path: Path) -> None:
    probe = machine(programs={"broken": ""})
    (tmp_path / "commands" / "broken").write_text("#!/no/such/interpreter\n")
    assert probe.run("broken").missing


def test_files_and_folders(machine: Callable[..., Machine]) -> None:
    probe = machine({"/dev/davinci0": "", "/dev/davinci_manager": "", "/etc/a": "text"})
    assert probe.glob("/dev/davinci[0-9]*") == ["/dev/davinci0"]
    assert probe.glob("/") == []
    assert probe.glob("/a\0b") == []
    assert (probe.read("/etc/a"), probe.read("/etc"), probe.read("/a\0b")) == ("text", None, None)
    assert probe.may_use("/etc/a") and not probe.may_use("/etc/b")
    assert probe.version("no-such-package") is None
