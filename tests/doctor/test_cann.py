"""CANN's environment, and releases that go together."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from dsgen.catalog.versions import cann_releases
from dsgen.doctor.cann import check_cann, import_problem, known_release
from dsgen.doctor.check import State, Subject
from dsgen.doctor.probe import Captured, Machine

from .conftest import CANN, SAMPLES, by_name

HOME = "/opt/cann"
SOURCED = {"ASCEND_HOME_PATH": HOME, "ASCEND_OPP_PATH": f"{HOME}/opp", "LD_LIBRARY_PATH": f"/none:{HOME}/lib64"}
WHOLE: dict[str, str | None] = {
    f"{HOME}/lib64/libhccl.so": "",
    f"{HOME}/lib64/libascendcl.so": "",
    f"{HOME}/opp": None,
    f"{HOME}/runtime": None,
    f"{HOME}/compiler": None,
    f"{HOME}/aarch64-linux/ascend_toolkit_install.info": (SAMPLES / "ascend_toolkit_install.info").read_text(),
    "/usr/local/Ascend/driver/version.info": (SAMPLES / "driver-version.info").read_text(),
}


def test_a_whole_cann(machine: Callable[..., Machine], subject: Callable[..., Subject]) -> None:
    checks = by_name(check_cann(subject(machine(WHOLE, environ=SOURCED))))
    assert checks["cann.environment"].state is State.OK
    assert checks["cann.version"].found == "CANN 8.5.0 (ascend_toolkit_install.info)"
    driver = checks["cann.driver"]
    assert (driver.state, driver.found) == (
        State.OK,
        "driver 24.1.rc3 (V100R001C19) and CANN 8.5.0 (V100R001C25) name each other",
    )


def test_not_sourced(machine: Callable[..., Machine], subject: Callable[..., Subject]) -> None:
    nothing = by_name(check_cann(subject(machine())))
    assert nothing["cann.environment"].state is State.ERROR
    assert "no set_env.sh stands" in nothing["cann.environment"].found
    assert nothing["cann.version"].state is State.SKIPPED
    script = "/usr/local/Ascend/ascend-toolkit/set_env.sh"
    there = machine(
        {script: "", "/usr/local/Ascend/ascend-toolkit/8.5.0/a/ascend_toolkit_install.info": "version=8.5.0\n"}
    )
    by_launch = by_name(check_cann(subject(there)))
    assert by_launch["cann.environment"].state is State.OK
    assert f"launch.sh sources {script}" in by_launch["cann.environment"].found
    assert by_launch["cann.version"].state is State.OK
    by_hand = by_name(check_cann(Subject(probe=there)))
    assert by_hand["cann.environment"].remedy == f"source {script}"


@pytest.mark.parametrize(
    ("gone", "words", "goes_on"),
    [
        (f"{HOME}/runtime", "runtime does not exist", False),
        (f"{HOME}/compiler", "compiler does not exist", False),
        (f"{HOME}/opp", "ASCEND_OPP_PATH=/opt/cann/opp does not exist", False),
        (f"{HOME}/lib64/libhccl.so", "libhccl.so is in no folder", True),
    ],
)
def test_parts_that_are_gone(
    machine: Callable[..., Machine], subject: Callable[..., Subject], gone: str, words: str, goes_on: bool
) -> None:
    probe = machine({path: text for path, text in WHOLE.items() if path != gone}, environ=SOURCED)
    problem = import_problem(probe)
    assert problem is not None
    assert words in problem[0]
    assert problem[1] is goes_on
    assert by_name(check_cann(subject(probe)))["cann.environment"].state is State.ERROR


def test_variables_that_are_half_set(machine: Callable[..., Machine]) -> None:
    half = {"ASCEND_HOME_PATH": HOME, "LD_LIBRARY_PATH": f"{HOME}/lib64"}
    assert import_problem(machine(WHOLE, environ=half)) == ("ASCEND_OPP_PATH is not set", False)
    assert import_problem(machine(WHOLE, environ=SOURCED)) is None
    gone = import_problem(machine(environ=SOURCED))
    assert gone == ("ASCEND_HOME_PATH=/opt/cann, and /opt/cann does not exist", False)


def test_every_published_pair_is_good_and_others_are_not(
    capture: Callable[..., Captured], subject: Callable[..., Subject]
) -> None:
    def pair(torch_npu: str, cann: str) -> tuple[State, str]:
        probe = capture({"ascend_toolkit_install.info": f"a=b\nversion={cann}\n"}, packages={"torch_npu": torch_npu})
        check = by_name(check_cann(Subject(probe=probe)))["cann.torch_npu"]
        return check.state, check.remedy

    for cann, published in cann_releases().items():
        for torch_npu in published:
            assert pair(torch_npu, cann) == (State.OK, "")
    assert pair("2.9.0", "8.5.1") == (State.OK, "")
    assert pair("2.9.0", "8.5.0.RC1")[0] is State.ERROR
    older = pair("2.9.0", "8.3.RC1")
    assert older[0] is State.ERROR
    assert "with CANN 8.3.RC1, torch_npu 2.8.0, 2.7.1" in older[1]
    assert pair("2.9.0", "9.1.0")[0] is State.WARNING
    assert pair("2.13.0", "9.1.0")[0] is State.WARNING
    assert pair("2.13.0", "what")[0] is State.WARNING


def test_releases() -> None:
    assert known_release("8.5.0") == "8.5.0"
    assert known_release("8.5.2") == "8.5.0"
    assert known_release("8.2.RC1.alpha002") == "8.2.RC1"
    assert known_release("8.0.RC4") is None
    assert known_release("nothing") is None


def test_captured(capture: Callable[..., Captured], subject: Callable[..., Subject]) -> None:
    files = {name: name for name in ("ascend_toolkit_install.info", "driver-version.info")}
    checks = by_name(check_cann(subject(capture(files))))
    assert {name: check.state.value for name, check in checks.items()} == {
        "cann.environment": "ok",
        "cann.version": "ok",
        "cann.torch_npu": "warning",
        "cann.driver": "ok",
        "cann.firmware": "skipped",
    }
    assert "no release of CANN is known that torch_npu 2.13.0" in checks["cann.torch_npu"].found
    bare = by_name(check_cann(subject(capture(files, environment={"PATH": "/bin"}))))
    assert bare["cann.environment"].state is State.ERROR
    nothing = by_name(check_cann(subject(capture({}, environment=None, packages=None))))
    assert {check.state for check in nothing.values()} == {State.SKIPPED}


def test_driver_and_firmware(capture: Callable[..., Captured], subject: Callable[..., Subject]) -> None:
    cann = (SAMPLES / "ascend_toolkit_install.info").read_text()
    driver = (SAMPLES / "driver-version.info").read_text()

    def judged(driver: str, firmware: str) -> tuple[State, State]:
        files = {"ascend_toolkit_install.info": cann, "driver-version.info": driver, "firmware-version.info": firmware}
        checks = by_name(check_cann(subject(capture(files, environment=CANN))))
        return checks["cann.driver"].state, checks["cann.firmware"].state

    assert judged(driver, "Version=7.1.0.3.220\n") == (State.OK, State.OK)
    assert judged(driver, "Version=7.6.0\n") == (State.OK, State.ERROR)
    assert judged(driver.replace("C19", "C99"), "Version=6.9\n") == (State.WARNING, State.ERROR)
    assert judged("\n", "Version=7.1.0\n") == (State.SKIPPED, State.SKIPPED)


def test_the_drivers_version_by_npu_smi(capture: Callable[..., Captured], subject: Callable[..., Subject]) -> None:
    probe = capture({"npu-smi-info.txt": "npu-smi-info-a2-910b3-idle.txt"})
    assert "driver 24.1.rc3 (by npu-smi)" in by_name(check_cann(subject(probe)))["cann.driver"].found
