"""CANN and the driver: sourced, whole, and of releases that go together with torch_npu."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from dsgen.catalog.versions import cann_for, cann_releases
from dsgen.doctor.check import Check, Subject, error, not_captured, not_understood, ok, skipped, warning
from dsgen.doctor.npu_smi import parse_info
from dsgen.doctor.probe import Probe

_SOURCE = "source CANN's set_env.sh (usually /usr/local/Ascend/ascend-toolkit/set_env.sh)"
_DRIVER = "/usr/local/Ascend/driver/version.info"
_FIRMWARE = "/usr/local/Ascend/firmware/version.info"


def check_cann(subject: Subject) -> Iterator[Check]:
    """The environment that set_env.sh makes, its folders, and the versions of CANN, driver and firmware."""
    yield from _environment(subject)
    if subject.simulated:
        yield skipped("cann.version", "simulated NPU: stub libraries stand in for CANN")
        return
    version, info = _toolkit(subject)
    driver = _fields(subject.probe.read(_DRIVER))
    yield version
    yield _pair(subject, info.get("version"))
    yield _driver(subject, info, driver)
    yield _firmware(subject, driver)


def script_to_source(probe: Probe) -> str | None:
    """The set_env.sh that launch.sh would source by itself: none when one is sourced already."""
    if not probe.live or probe.variable("ASCEND_HOME_PATH"):
        return None
    toolkit = probe.variable("ASCEND_TOOLKIT_HOME")
    home = probe.variable("HOME")
    for root in ("/usr/local/Ascend", f"{home}/Ascend" if home else ""):
        if root:
            folder = (toolkit or f"{root}/ascend-toolkit").rstrip("/")
            parent = str(Path(folder).parent)
            for pattern in (f"{folder}/set_env.sh", f"{parent}/set_env.sh", f"{root}/cann*/set_env.sh"):
                if found := probe.glob(pattern):
                    return found[0]
    return None


def import_problem(probe: Probe) -> tuple[str, bool] | None:
    """Why `import torch_npu` fails in this environment, and whether DeepSpeed lives through that (ImportError only).

    torch_npu: _init/registry/registry_manager.py and _init/core/module_loader.py; it has its own exception, which
    nobody catches, for folders, and the linker's ImportError for libraries. None when nothing speaks against it.
    """
    home, opp = probe.variable("ASCEND_HOME_PATH"), probe.variable("ASCEND_OPP_PATH")
    if home is not None:
        if probe.live:
            for folder in (home, f"{home}/runtime", f"{home}/compiler"):
                if not probe.glob(folder):
                    return f"ASCEND_HOME_PATH={home}, and {folder} does not exist", False
        if opp is None:
            return "ASCEND_OPP_PATH is not set", False
        if probe.live and not probe.glob(opp):
            return f"ASCEND_OPP_PATH={opp} does not exist", False
    if not probe.live:
        return None if home else ("ASCEND_HOME_PATH is not set: libhccl.so is not found", True)
    folders = [folder for folder in (probe.variable("LD_LIBRARY_PATH") or "").split(":") if folder.startswith("/")]
    for library in ("libhccl.so", "libascendcl.so"):
        if not any(probe.glob(f"{folder}/{library}") for folder in [*folders, "/usr/lib64", "/usr/lib", "/lib64"]):
            return f"{library} is in no folder of LD_LIBRARY_PATH", True
    return None


def _environment(subject: Subject) -> Iterator[Check]:
    name, probe = "cann.environment", subject.probe
    if not probe.knows_environment:
        yield not_captured(probe, name, "environment.txt")
        return
    home, opp = probe.variable("ASCEND_HOME_PATH"), probe.variable("ASCEND_OPP_PATH")
    if not home:
        script = script_to_source(probe)
        if script and subject.plan is not None:
            yield ok(name, f"ASCEND_HOME_PATH is not set; launch.sh sources {script} by itself")
        elif script:
            yield warning(name, f"ASCEND_HOME_PATH is not set, and {script} is there", f"source {script}")
        else:
            where = ", and no set_env.sh stands under /usr/local/Ascend or ~/Ascend" if probe.live else ""
            yield subject.wrong(
                name,
                f"there is no CANN here: ASCEND_HOME_PATH is not set{where}; DeepSpeed's operators end with KeyError, "
                "or it trains on the CPU",
                f"go to an Ascend machine or container, install CANN, or {_SOURCE}",
            )
        return
    problem = import_problem(probe)
    if problem is not None:
        yield error(name, f"CANN is not whole: {problem[0]}, so torch_npu cannot be imported", f"{_SOURCE} again")
    else:
        yield ok(name, f"ASCEND_HOME_PATH={home}, ASCEND_OPP_PATH={opp}")


def _toolkit(subject: Subject) -> tuple[Check, Mapping[str, str]]:
    name, probe = "cann.version", subject.probe
    home = probe.variable("ASCEND_HOME_PATH") or (script_to_source(probe) or "").rpartition("/")[0]
    if probe.live and not home:
        return skipped(name, "no CANN to look at"), {}
    # DeepSpeed looks for the same names: op_builder/npu/builder.py, installed_cann_version.
    for depth in ("", "/*", "/*/*"):
        for path in probe.glob(f"{home}{depth}/ascend_*_install.info"):
            fields = _fields(probe.read(path))
            if fields.get("version"):
                return ok(name, f"CANN {fields['version']} ({Path(path).name})"), fields
            remedy = "look at it yourself: its line version= names the release of CANN"
            return not_understood(name, f"{path} has no line version=", remedy), {}
    if not probe.live:
        return skipped(name, "no ascend_toolkit_install.info was captured"), {}
    return (
        warning(
            name, f"no ascend_*_install.info stands in {home}: the release of CANN is not known", "install CANN again"
        ),
        {},
    )


def _pair(subject: Subject, cann: str | None) -> Check:
    name = "cann.torch_npu"
    torch_npu = subject.probe.version("torch_npu")
    if cann is None or torch_npu is None:
        return skipped(name, "not compared: " + ("CANN's release" if cann is None else "torch_npu") + " is not known")
    published = cann_for(torch_npu)
    release = known_release(cann)
    if release in published:
        return ok(name, f"torch_npu {torch_npu} is published for CANN {release}")
    remedy = "take a published pair: " + _pairs_for(release, torch_npu)
    if not published:
        found = f"no release of CANN is known that torch_npu {torch_npu} was published for; here is {cann}"
        return warning(name, found, remedy)
    said = f"torch_npu {torch_npu} is published for CANN {', '.join(published)}, and here is {cann}"
    if _order(cann) < min(map(_order, published)):
        return error(name, f"{said}, which is older: functions that torch_npu calls may be missing", remedy)
    return warning(name, said, remedy)


def known_release(cann: str) -> str | None:
    """The release of the published table that a version belongs to: 8.5.1 to 8.5.0, 8.2.RC1.alpha002 to 8.2.RC1."""
    for release in cann_releases():
        if _order(release)[:3] == _order(cann)[:3]:
            return release
    return None


def _order(version: str) -> tuple[int, int, int, int]:
    """For comparing: major, minor, release candidate (a final release is the highest), patch."""
    match = re.match(r"(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:\.?RC(\d{1,6}))?", version, re.IGNORECASE)
    if match is None:
        return (0, 0, 0, 0)
    major, minor, patch, candidate = match.groups()
    return int(major), int(minor), int(candidate) if candidate else 10**6, int(patch or 0)


def _pairs_for(release: str | None, torch_npu: str) -> str:
    if release is not None:
        return f"with CANN {release}, torch_npu {', '.join(cann_releases()[release])}"
    newest = next(iter(cann_releases().items()))
    published = cann_for(torch_npu)
    if published:
        return f"with torch_npu {torch_npu}, CANN {', '.join(published)}"
    return f"CANN {newest[0]} with torch_npu {', '.join(newest[1])}"


def _driver(subject: Subject, cann: Mapping[str, str], driver: Mapping[str, str]) -> Check:
    name = "cann.driver"
    version = driver.get("version") or driver.get("package_version")
    if not version:
        info = parse_info(subject.probe.run("npu-smi", "info").text)
        if info is not None and info.version:
            return ok(name, f"driver {info.version} (by npu-smi); {_DRIVER} is not there to compare it with CANN")
        if (subject.probe.read(_DRIVER) or "").strip():
            remedy = "look at it yourself: its line Version= names the release of the driver"
            return not_understood(name, f"{_DRIVER} is there and has no line Version=", remedy)
        return skipped(name, f"the driver's version is not known: {_DRIVER} is not there")
    ours, theirs = _line(cann.get("innerversion", "")), _line(driver.get("innerversion", ""))
    if not ours or not theirs:
        return ok(name, f"driver {version}; not compared with CANN, whose internal version is not known")
    if theirs in _list(cann) or ours in _list(driver) or ours == theirs:
        return ok(name, f"driver {version} ({theirs}) and CANN {cann.get('version')} ({ours}) name each other")
    return warning(
        name,
        f"driver {version} ({theirs}) and CANN {cann.get('version')} ({ours}): neither lists the other as compatible",
        "install the driver that CANN's release notes name; a driver that is too old gives error 507899",
    )


def _firmware(subject: Subject, driver: Mapping[str, str]) -> Check:
    name = "cann.firmware"
    limits = re.fullmatch(r"\[ *([\d.]+) *, *([\d.]+) *\]", driver.get("compatible_version_fw", ""))
    version = _fields(subject.probe.read(_FIRMWARE)).get("version", "")
    if limits is None or not re.match(r"\d", version):
        return skipped(name, "not compared: the firmware's version, or the range that the driver takes, is not known")
    lowest, highest = (_numbers(limit) for limit in limits.groups())
    if lowest <= _numbers(version)[: len(highest)] <= highest:
        return ok(name, f"firmware {version}, which the driver takes ({limits[1]} to {limits[2]})")
    return error(
        name,
        f"firmware {version} is outside {limits[1]} to {limits[2]}, which the driver takes: calls end with 'driver and "
        "firmware packages do not match'",
        "install driver and firmware of one release, then restart the machine",
    )


def _fields(text: str | None) -> dict[str, str]:
    """NAME=VALUE lines, names in lower case; the first of equal names counts."""
    fields: dict[str, str] = {}
    for name, value in re.findall(r"^([A-Za-z_]+)=(.*?)\s*$", text or "", re.MULTILINE):
        fields.setdefault(name.lower(), value)
    return fields


def _line(innerversion: str) -> str:
    """The line of development of an internal version: V100R001C19 of V100R001C19SPC005B225."""
    match = re.match(r"V\d+R\d+C\d+", innerversion)
    return match[0] if match else ""


def _list(fields: Mapping[str, str]) -> list[str]:
    return re.findall(r"V\d+R\d+C\d+", fields.get("compatible_version", ""))


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d{1,9}", version)]
