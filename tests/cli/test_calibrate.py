"""`dsgen calibrate`, and the estimates that use what it wrote."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsgen.cli.main import main_code
from dsgen.planner.profiles import NONE, find_calibration

from ..conftest import RECIPES

GIB, MIB = 1 << 30, 1 << 20
DEVICE = "ascend-910b3-64g"
RECIPE = str(RECIPES / "13b-zero2.yaml")

Make = Callable[..., Path]


@pytest.fixture(autouse=True)
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where this user's profiles stand: nowhere yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "dsgen" / "profiles"


@pytest.fixture
def make_run(tmp_path: Path) -> Make:
    """Writes the folder of a finished run as `dsgen launch` leaves it; the changes go into its two files."""

    def make(
        name: str = "001",
        *,
        report: dict[str, Any] | None = None,
        device: dict[str, Any] | None = None,
        estimate: dict[str, Any] | None = None,
    ) -> Path:
        folder = tmp_path / "runs" / "big" / name
        folder.mkdir(parents=True)
        measured: dict[str, Any] = {
            "ranks": 8,
            "device_name": "Ascend910B3",
            "allocated_peak_bytes": 40 * GIB,
            "reserved_peak_bytes": 44 * GIB,
            "beside_bytes": 900 * MIB,
            **(device or {}),
        }
        versions = {"python": "3.11.7", "torch": "2.13.0+cpu", "torch_npu": "2.13.0", "deepspeed": "0.19.8"}
        said = {
            **{"name": "big", "status": "finished", "steps": 20, "resumed_after": 0, "accelerator": "npu"},
            **{"simulated": False, "versions": versions, "memory": {"device": measured}},
            **(report or {}),
        }
        expected = {
            **{
                "device": DEVICE,
                "own_script": False,
                "allocated_peak_bytes": 41 * GIB,
                "communicators_bytes": 400 * MIB,
            },
            **(estimate or {}),
        }
        (folder / "report.json").write_text(json.dumps(said))
        (folder / "estimate.json").write_text(json.dumps(expected))
        return folder

    return make


def estimated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main_code(["estimate", RECIPE, "--format", "json", *words])
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    return said


def test_later_estimates_use_and_name_the_profile(
    make_run: Make, profiles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = estimated(capsys)
    second = make_run("002", device={"reserved_peak_bytes": 60 * GIB, "beside_bytes": 700 * MIB})
    assert main_code(["calibrate", str(make_run()), str(second)]) == 0
    said = capsys.readouterr().out
    path = profiles / f"{DEVICE}.yaml"
    assert said.splitlines()[1].split()[:7] == ["big/001", "41.0", "GiB", "40.0", "GiB", "+2.5%", "44.0"]
    assert "context 500 MiB" in said and "allocated x 1.10 to 1.50" in said and said.endswith(f"profile: {path}\n")
    content = yaml.safe_load(path.read_text())
    assert (content["device"], content["simulated"], len(content["runs"])) == (DEVICE, False, 2)
    assert (content["context_bytes"], content["reserved_factors"]) == (500 * MIB, [1.1, 1.5])
    assert content["allocated_error"] == [0.025, 0.025]
    assert content["runs"][0]["versions"] == {"torch": "2.13.0+cpu", "torch_npu": "2.13.0", "deepspeed": "0.19.8"}

    after = estimated(capsys)
    assert before["device_profile"] is None
    assert after["device_profile"] == (
        f"calibrated by 2 runs (deepspeed 0.19.8, torch 2.13.0+cpu, torch_npu 2.13.0), {path}"
    )
    assert after["device"]["parts"]["device context"] == 500 * MIB
    less = before["device"]["parts"]["device context"] - 500 * MIB
    assert before["device"]["total_peak_bytes"] - after["device"]["total_peak_bytes"] == less > 0
    main_code(["estimate", RECIPE])
    assert "device profile: calibrated by 2 runs" in " ".join(capsys.readouterr().out.split())
    assert estimated(capsys, "--profile", "none") == before


def test_a_profile_of_ones_choice(make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.yaml"
    for _ in range(2):  # a profile may be overwritten by a profile
        assert main_code(["calibrate", str(make_run(str(_))), "--output", str(mine)]) == 0
    capsys.readouterr()
    assert estimated(capsys)["device_profile"] is None
    assert estimated(capsys, "--profile", str(mine))["device_profile"].endswith(f", {mine}")


def test_advice_and_comparisons_are_estimated_with_it(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    too_much = ("--set", "activation_checkpointing=none")
    assert main_code(["calibrate", str(make_run(device={"beside_bytes": 5 * GIB + 400 * MIB}))]) == 0
    capsys.readouterr()
    first = estimated(capsys, *too_much)["advice"][0]
    changed = [word for override in first["set"] for word in ("--set", override)]
    again = estimated(capsys, *too_much, *changed)
    assert again["device"]["parts"]["device context"] == 5 * GIB
    assert again["device"]["total_peak_bytes"] == first["device_total_peak_bytes"]
    main_code(["estimate", RECIPE, "--compare", "stage", "--format", "json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    (same,) = [row for row in rows if row["same"]]
    assert same["device_total_peak_bytes"] == estimated(capsys)["device"]["total_peak_bytes"]


def test_rendered_files_do_not_depend_on_profiles(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("without", "with"):
        assert main_code(["render", RECIPE, "-o", str(tmp_path / name)]) == 0
        assert main_code(["calibrate", str(make_run(name))]) == 0
    assert find_calibration(DEVICE) is not None
    without, others = ({path.name: path.read_bytes() for path in (tmp_path / n).iterdir()} for n in ("without", "with"))
    assert "dsgen.lock.yaml" in without
    assert without == others


def test_tiny_runs_and_scripts_of_ones_own_tell_no_reserved_factor(
    make_run: Make, profiles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny = {"allocated_peak_bytes": GIB - 1, "reserved_peak_bytes": 2 * GIB}
    folders = [make_run("1", device=tiny), make_run("2", estimate={"own_script": True})]
    before = estimated(capsys)
    assert main_code(["calibrate", *map(str, folders)]) == 0
    assert "told by none of these runs" in capsys.readouterr().out
    assert yaml.safe_load((profiles / f"{DEVICE}.yaml").read_text())["reserved_factors"] is None
    assert estimated(capsys)["device"]["reserved_peak_bytes"] == before["device"]["reserved_peak_bytes"]


def test_a_run_counts_once(make_run: Make, profiles: Path) -> None:
    run = make_run()
    assert main_code(["calibrate", str(run), f"{run}/../001"]) == 0
    assert len(yaml.safe_load((profiles / f"{DEVICE}.yaml").read_text())["runs"]) == 1


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"report": {"accelerator": "cpu"}}, "ran on the CPU, which does not count what tensors hold"),
        ({"report": {"simulated": True}}, "ran on the simulated NPU, which tells nothing of a real one"),
        ({"report": {"steps": 1}}, "trained fewer than two steps"),
        ({"report": {"steps": 9, "resumed_after": 8}}, "trained fewer than two steps"),
        ({"report": {"memory": None}}, "tells no memory of the device"),
        ({"device": {"device_name": "Ascend910B2"}}, "ran on Ascend910B2, which is ascend-910b2-64g, and its recipe"),
        ({"device": {"allocated_peak_bytes": "much"}}, "is damaged: allocated_measured_bytes: Input should be a valid"),
        ({"device": {"allocated_peak_bytes": 0}}, "is damaged: allocated_measured_bytes: Input should be greater"),
        ({"device": {"beside_bytes": 1.5}}, "is damaged: context_bytes"),
        ({"device": {"beside_bytes": -1}}, "002 is damaged: memory.device.beside_bytes: -1 is negative"),
        (
            {"device": {"beside_bytes": 65 * GIB}},
            "002 is damaged: memory.device.beside_bytes: 69793218560 is more than",
        ),
        ({"device": {"reserved_peak_bytes": 39 * GIB}}, "memory.device.reserved_peak_bytes: 41875931136 is less than"),
        ({"device": {"reserved_peak_bytes": 65 * GIB}}, "memory.device.reserved_peak_bytes: 69793218560 is more than"),
        ({"device": {"allocated_peak_bytes": 1}}, "memory.device.allocated_peak_bytes: 1, where 44023414784 was"),
        ({"report": {"simulated": "yes"}}, "002 is damaged: simulated: neither true nor false"),
        ({"report": {"name": "a\x1b[31m"}}, "is damaged: name"),
        ({"report": {"versions": {"torch": "\n"}}}, "is damaged: versions.torch"),
        ({"estimate": {"device": "../../up"}}, "names no device that `dsgen devices` lists"),
        ({"estimate": {"device": None}}, "names no device that `dsgen devices` lists"),
        ({"estimate": {"allocated_peak_bytes": True}}, "is damaged: allocated_estimated_bytes"),
    ],
)
def test_runs_that_tell_nothing_are_refused(
    make_run: Make, profiles: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], why: str
) -> None:
    good = make_run("001")
    assert main_code(["calibrate", str(good), str(make_run("002", **changes))]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and why in said and "\x1b" not in said
    assert not profiles.exists()


@pytest.mark.parametrize("name", ["report.json", "estimate.json"])
@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "has no"),
        ("", "is damaged"),
        ("[1]", "holds no JSON object"),
        ("[" * 100_000, "is damaged"),
        ("\xff", "is"),
    ],
)
def test_damaged_files_are_refused(
    make_run: Make, capsys: pytest.CaptureFixture[str], name: str, text: str | None, why: str
) -> None:
    run = make_run()
    if text is None:
        (run / name).unlink()
    else:
        (run / name).write_text(text, encoding="latin-1")
    assert main_code(["calibrate", str(run)]) == 2
    said = capsys.readouterr().err
    assert name in said and why in said


def test_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "nowhere", tmp_path / "file"):
        assert main_code(["calibrate", str(path)]) == 2
        assert f"{path} is no folder" in capsys.readouterr().err
    assert main_code(["calibrate"]) == 2


def test_different_devices_are_refused(make_run: Make, capsys: pytest.CaptureFixture[str]) -> None:
    other = make_run("002", device={"device_name": "Ascend910B2"}, estimate={"device": "ascend-910b2-64g"})
    assert main_code(["calibrate", str(make_run()), str(other)]) == 2
    assert "different devices: ascend-910b2-64g, ascend-910b3-64g" in capsys.readouterr().err


def test_simulated_runs_make_a_marked_profile_elsewhere(
    make_run: Make, tmp_path: Path, profiles: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, output = make_run(report={"simulated": True}), tmp_path / "simulated.yaml"
    assert main_code(["calibrate", str(run), "--simulated"]) == 2
    assert "--simulated needs --output" in capsys.readouterr().err
    assert main_code(["calibrate", str(run), "--simulated", "--output", str(output)]) == 0
    assert "ascend-910b3-64g, simulated: " in capsys.readouterr().out
    assert not profiles.exists()
    assert "1 run on the simulated NPU" in estimated(capsys, "--profile", str(output))["device_profile"]
    mixed = ["calibrate", str(run), str(make_run("002")), "--simulated", "--output", str(output)]
    assert main_code(mixed) == 2
    assert "ran on a real device" in capsys.readouterr().err


def test_nothing_but_a_profile_is_overwritten(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, recipe, folder = make_run(), tmp_path / "recipe.yaml", tmp_path / "folder"
    recipe.write_text("schema: 1\n")
    folder.mkdir()
    (folder / "kept").write_text("")
    for target in (recipe, folder):
        assert main_code(["calibrate", str(run), "--output", str(target)]) == 2
        assert f"{target} is not overwritten, because it is no device profile" in capsys.readouterr().err
    assert recipe.read_text() == "schema: 1\n" and (folder / "kept").exists()


@pytest.mark.parametrize("parent", ["nowhere", "file"])
def test_a_folder_that_is_not_there_is_not_made(
    make_run: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str], parent: str
) -> None:
    (tmp_path / "file").write_text("")
    output = tmp_path / parent / "x.yaml"
    assert main_code(["calibrate", str(make_run()), "--output", str(output)]) == 2
    assert f"--output {output}: the folder {output.parent} " in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_a_profile_that_leads_nowhere_is_not_passed_over(profiles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profiles.mkdir(parents=True)
    path = profiles / f"{DEVICE}.yaml"
    path.symlink_to("nowhere")
    assert main_code(["estimate", RECIPE]) == 2
    assert f"error: {path}:1:1: cannot be read" in capsys.readouterr().err
    assert main_code(["estimate", RECIPE, "--profile", "none"]) == 0


GOOD = {
    "profile": 1,
    "device": DEVICE,
    "simulated": False,
    "context_bytes": 1000,
    "reserved_factors": [1.0, 1.1],
    "allocated_error": [0.0, 0.1],
    "runs": [
        {
            "name": "big",
            "run": "big/001",
            "allocated_estimated_bytes": 5,
            "allocated_measured_bytes": 5,
            "reserved_bytes": 6,
            "reserved_factor": 1.2,
            "context_bytes": 1000,
            "versions": {},
        }
    ],
}


@pytest.mark.parametrize(
    ("changes", "line", "why"),
    [
        ({"profile": 2}, 1, "profile: "),
        ({"device": "ascend-910b2-64g"}, 2, f"is the profile of ascend-910b2-64g, and the estimate is for {DEVICE}"),
        ({"context_bytes": -1}, 4, "context_bytes: Input should be greater than or equal to 0"),
        ({"context_bytes": True}, 4, "context_bytes: Input should be a valid integer"),
        ({"context_bytes": 10**30}, 4, "context_bytes: Input should be less than"),
        ({"reserved_factors": [1.1, 1.0]}, 6, "reserved_factors: the lower one comes first"),
        ({"reserved_factors": [1.0, float("inf")]}, 7, "reserved_factors[1]: Input should be"),
        ({"reserved_factors": [1.0, float("nan")]}, 7, "reserved_factors[1]: Input should be"),
        ({"reserved_factors": [0.5, 1.0]}, 6, "reserved_factors[0]: Input should be greater"),
        ({"reserved_factors": [1.0]}, 6, "reserved_factors: List should have at least 2 items"),
        ({"runs": []}, 11, "runs: List should have at least 1 item"),
        ({"nonsense": 1}, 20, "nonsense: Extra inputs are not permitted"),
        ({"device": None}, 2, "device: Input should be a valid string"),
    ],
)
def test_a_bad_profile_is_told_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, Any], line: int, why: str
) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump({**GOOD, **changes}, sort_keys=False))
    assert main_code(["estimate", RECIPE, "--profile", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {path}:{line}:"), said
    assert why in said and "--profile none" in said


@pytest.mark.parametrize("text", ["", "[1]", "profile: [", "a: &a [*a]\n", "x: 1\n" * 5])
def test_a_file_that_is_no_profile(
    tmp_path: Path, profiles: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """One that an estimate finds by itself, too: it is never passed over in silence."""
    profiles.mkdir(parents=True)
    path = profiles / f"{DEVICE}.yaml"
    path.write_text(text)
    for command in (["estimate", RECIPE], ["launch", RECIPE, "--dry-run"]):
        assert main_code(command) == 2
        assert capsys.readouterr().err.startswith(f"error: {path}:")
    assert main_code(["estimate", RECIPE, "--profile", "none"]) == 0
    assert main_code(["estimate", RECIPE, "--profile", str(tmp_path / "missing.yaml")]) == 2


def test_without_a_home_there_is_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "~nobody-of-this-name")
    assert find_calibration(DEVICE) is None
    assert find_calibration(DEVICE, NONE) is None


def test_torch_is_not_loaded(make_run: Make) -> None:
    program = (
        "import sys; from dsgen.cli.main import main_code;"
        f"code = main_code(['calibrate', {str(make_run())!r}]);"
        "sys.exit(code or bool({'torch', 'deepspeed', 'transformers', 'numpy'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
