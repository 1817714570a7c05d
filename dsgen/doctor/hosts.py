"""The hosts of a job of several nodes: reached over ssh, with the same paths, versions and clock as this machine."""

from __future__ import annotations

import re
import shlex
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dsgen.doctor.check import Check, Subject, error, ok, skipped, warning
from dsgen.doctor.probe import Output, Probe

SECONDS = 20.0
_CLOCK_SECONDS = 5
_AT_ONCE = 32
_PACKAGES = ("dsgen", "torch", "torch_npu", "deepspeed", "transformers")

_SCRIPT = """\
echo "doctor begin"
echo "clock $(date +%s)"
for path in {paths}; do if [ -e "$path" ]; then echo "path yes $path"; else echo "path no $path"; fi; done
{python} - <<'END'
import platform
from importlib.metadata import PackageNotFoundError, version
print("version python", platform.python_version())
for name in {packages!r}:
    try:
        print("version", name, version(name))
    except PackageNotFoundError:
        print("version", name, "missing")
END
for file in {cann}/ascend_*_install.info {cann}/*/ascend_*_install.info; do
  if [ -f "$file" ]; then sed -n 's/^version=/version CANN /p' "$file"; break; fi
done
if [ -f /usr/local/Ascend/driver/version.info ]; then
  sed -n 's/^Version=/version driver /p' /usr/local/Ascend/driver/version.info
fi
echo "doctor end"
"""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one host says of itself."""

    output: Output
    whole: bool
    """Whether the script ran there from its beginning to its end."""
    clock_off_seconds: int
    """By how much its clock is off at least; 0 when that cannot be told."""
    missing_paths: tuple[str, ...]
    versions: Mapping[str, str]


def check_hosts(subject: Subject) -> Iterator[Check]:
    """Every host of `hardware.hosts`, asked at the same time."""
    plan, probe = subject.plan, subject.probe
    if plan is None or plan.nodes == 1:
        yield skipped(
            "hosts", "the recipe has one node" if plan is not None else "which hosts there are depends on the recipe"
        )
        return
    if not plan.hosts:
        yield skipped("hosts", "the recipe names no hosts: start launch.sh on every node, and doctor there too")
        return
    if not probe.has_program("ssh"):
        yield error(
            "hosts.ssh", "ssh is not installed, and the nodes are reached with it", "apt-get install openssh-client"
        )
        return
    script = _script(subject)
    here = read_answer(probe.run("sh", "-s", text=script, seconds=SECONDS), time.time(), time.time())
    answers = _ask_all(probe, plan.hosts, script)
    reached = {host: answer for host, answer in answers.items() if answer.whole}
    yield _ssh(answers)
    if reached:
        yield _paths(reached)
        yield _versions(reached, here)
        yield _clock(reached)


def _script(subject: Subject) -> str:
    paths = {sys.executable, str(Path.cwd())}
    if subject.folder is not None:
        paths.add(str(subject.folder))
    home = subject.probe.variable("ASCEND_HOME_PATH")
    if home:
        paths.add(home)
    return _SCRIPT.format(
        paths=" ".join(shlex.quote(path) for path in sorted(paths)),
        python=shlex.quote(sys.executable),
        packages=_PACKAGES,
        cann=shlex.quote(home or "/usr/local/Ascend/ascend-toolkit/latest"),
    )


def _ask_all(probe: Probe, hosts: Sequence[str], script: str) -> dict[str, Answer]:
    def ask(host: str) -> Answer:
        begun = time.time()
        output = probe.run(
            "ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "--", host, "sh", "-s", text=script, seconds=SECONDS
        )
        return read_answer(output, begun, time.time())

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return dict(zip(hosts, pool.map(ask, hosts), strict=True))


def read_answer(output: Output, begun: float, ended: float) -> Answer:
    """The answer of a host that was asked from `begun` to `ended` (seconds, by the clock of this machine)."""
    lines = output.text.splitlines()
    clock = next((int(line[6:]) for line in lines if re.fullmatch(r"clock [0-9]{1,12}", line)), None)
    off = 0
    if clock is not None:
        # The script ran at some moment between; `date` cuts the fraction off.
        off = int(max(0, begun - 1 - clock, clock - ended))
    versions = re.findall(r"^version (\S+) (\S+)$", output.text, re.MULTILINE)
    return Answer(
        output=output,
        whole="doctor begin" in lines and "doctor end" in lines,
        clock_off_seconds=off,
        missing_paths=tuple(line[8:] for line in lines if line.startswith("path no ")),
        versions=dict(versions),
    )


def _ssh(answers: Mapping[str, Answer]) -> Check:
    name = "hosts.ssh"
    silent = {host: answer for host, answer in answers.items() if not answer.whole}
    if not silent:
        return ok(name, f"all {len(answers)} hosts answer without a password")
    reasons = []
    for host, answer in silent.items():
        said = [
            line for line in answer.output.text.strip().splitlines() if not line.startswith(("doctor", "clock", "path"))
        ]
        reasons.append(f"{host}: {said[-1][:160] if said else answer.output.problem or 'no answer'}")
    return error(
        name,
        "; ".join(reasons),
        f"make `ssh -o BatchMode=yes {next(iter(silent))} true` work from here: a key without a password in "
        "authorized_keys, the name known; or --set hardware.hosts=[a,b]",
    )


def _paths(answers: Mapping[str, Answer]) -> Check:
    name = "hosts.paths"
    missing = [f"{host}: {', '.join(answer.missing_paths)}" for host, answer in answers.items() if answer.missing_paths]
    if not missing:
        return ok(name, "Python, recipe and current folder have the same names on every host")
    return error(
        name,
        f"not there under the same name: {'; '.join(missing)}",
        "DeepSpeed starts the same path on every host: share the folder, or install the environment at the same place",
    )


def _versions(answers: Mapping[str, Answer], here: Answer) -> Check:
    name = "hosts.versions"
    differing = []
    for host, answer in answers.items():
        for package in sorted(here.versions.keys() | answer.versions.keys()):
            ours, theirs = here.versions.get(package, "missing"), answer.versions.get(package, "missing")
            if ours != theirs:
                differing.append(f"{host}: {package} {theirs}, here {ours}")
    if not differing:
        said = ", ".join(f"{package} {version}" for package, version in here.versions.items() if version != "missing")
        return ok(name, f"the same everywhere: {said}")
    found = "; ".join(differing[:8]) + (f"; and {len(differing) - 8} more" if len(differing) > 8 else "")
    return error(name, found, "install the same versions on every host; HCCL refuses to mix its own (EI0008)")


def _clock(answers: Mapping[str, Answer]) -> Check:
    name = "hosts.clock"
    off = {
        host: answer.clock_off_seconds for host, answer in answers.items() if answer.clock_off_seconds > _CLOCK_SECONDS
    }
    if not off:
        return ok(name, f"within {_CLOCK_SECONDS} s of this machine's")
    words = ", ".join(f"{host} by {seconds} s" for host, seconds in off.items())
    return warning(
        name,
        f"clocks differ: {words}; files look older than they are, and logs cannot be laid side by side",
        "run an NTP client on every host (timedatectl set-ntp true)",
    )
