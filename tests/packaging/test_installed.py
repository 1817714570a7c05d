"""Templates and recipes are found from a wheel, an editable install and a plain checkout, from any folder."""

from __future__ import annotations

import configparser
import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from ..conftest import REPOSITORY

SHOW = (
    "import json, dsgen, pathlib;"
    "from dsgen.resources import shipped;"
    "print(json.dumps([str(pathlib.Path(dsgen.__file__).parent), str(shipped('templates')), str(shipped('recipes'))]))"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "-w", str(folder), str(_copy(folder))], check=True, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


def _copy(folder: Path) -> Path:
    """A copy of what git tracks: building in the checkout would leave files in it."""
    target = folder / "source"
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=REPOSITORY,
        capture_output=True,
        check=True,
    ).stdout.decode()
    for name in filter(None, names.split("\0")):
        if (REPOSITORY / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            (target / name).write_bytes((REPOSITORY / name).read_bytes())
    return target


def _environment(folder: Path) -> Path:
    """A virtual environment that sees the packages of this one but not dsgen's own installation."""
    venv.create(folder, with_pip=False)
    (site,) = (folder / "lib").glob("python*/site-packages")
    here = Path(sys.prefix) / "lib" / site.parent.name / "site-packages"
    (site / "shared.pth").write_text(f"{here}\n")
    return folder / "bin" / "python"


def _show(python: Path, cwd: Path, **environment: str) -> list[str]:
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    out = subprocess.run(
        [str(python), "-c", SHOW], cwd=cwd, env=clean | environment, capture_output=True, text=True, check=True
    )
    return list(json.loads(out.stdout))


def test_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {"dsgen", wheel.name.split("-py3")[0] + ".dist-info"}
    assert "dsgen/templates/train.py.j2" in names
    assert "dsgen/recipes/13b-zero2.yaml" in names
    assert "dsgen/catalog/data/deepspeed/0.19.8.json" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    package, templates, recipes = _show(Path(sys.executable), tmp_path, PYTHONPATH=str(site))
    assert package == str(site / "dsgen")
    assert templates == str(site / "dsgen" / "templates")
    out = tmp_path / "out"
    render = [sys.executable, "-m", "dsgen", "render", f"{recipes}/13b-zero2.yaml", "-o", str(out)]
    subprocess.run(render, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)}, check=True, capture_output=True)
    assert {path.name for path in out.iterdir()} == {"ds_config.json", "train.py", "launch.sh", "dsgen.lock.yaml"}
    page = [sys.executable, "-m", "dsgen", "estimate", f"{recipes}/13b-zero2.yaml", "--format", "html"]
    shown = subprocess.run(
        page, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(site)}, check=True, capture_output=True
    )
    assert shown.stdout.endswith(b"</html>\n")


def test_plain_checkout(tmp_path: Path) -> None:
    checkout = _copy(tmp_path)
    shown = _show(Path(sys.executable), tmp_path, PYTHONPATH=str(checkout))
    assert shown == [str(checkout / name) for name in ("dsgen", "templates", "recipes")]


def test_editable(tmp_path: Path) -> None:
    checkout = _copy(tmp_path)
    python = _environment(tmp_path / "env")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*install, "--no-build-isolation", "-e", str(checkout)], check=True, cwd=tmp_path)
    shown = _show(python, tmp_path)
    assert shown == [str(checkout / name) for name in ("dsgen", "templates", "recipes")]


def test_every_package_is_listed() -> None:
    config = configparser.ConfigParser()
    config.read(REPOSITORY / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    found = {
        ".".join(path.parent.relative_to(REPOSITORY).parts) for path in (REPOSITORY / "dsgen").rglob("__init__.py")
    }
    assert listed == found | {"dsgen.templates", "dsgen.recipes"}


def test_every_data_file_is_carried(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    data = [path.relative_to(REPOSITORY) for path in (REPOSITORY / "dsgen" / "catalog" / "data").rglob("*.*")]
    data += [path.relative_to(REPOSITORY) for path in (REPOSITORY / "templates").rglob("*.*")]
    assert len(data) > 10
    assert {str(path).removeprefix("dsgen/") for path in data} <= {name.removeprefix("dsgen/") for name in names}


def test_no_package_imports_a_room_above_it() -> None:
    """The order of the rooms, lowest first; see docs/design.md."""
    order = [
        "documents",
        "findings",
        "resources",
        "catalog",
        "rules",
        "recipe",
        "dsconfig",
        "lint",
        "memory",
        "planner",
        "render",
        "ascend_sim",
        "doctor",
        "launch",
        "rehearse",
        "runtime",
        "report",
        "cli",
    ]
    wrong = []
    for path in (REPOSITORY / "dsgen").rglob("*.py"):
        parts = path.relative_to(REPOSITORY / "dsgen").with_suffix("").parts
        if parts[0] not in order:
            continue
        for line in path.read_text().splitlines():
            words = line.split()
            if len(words) > 1 and words[0] in ("from", "import") and words[1].startswith("dsgen."):
                room = words[1].split(".")[1]
                if room in order and order.index(room) > order.index(parts[0]):
                    wrong.append(f"{'/'.join(parts)} imports {room}")
    assert wrong == []


def test_only_the_training_side_imports_torch() -> None:
    heavy = {"torch", "deepspeed", "transformers", "torch_npu", "peft", "tokenizers", "pyarrow", "numpy"}
    wrong = []
    for path in (REPOSITORY / "dsgen").rglob("*.py"):
        if path.is_relative_to(REPOSITORY / "dsgen" / "runtime"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            words = line.split()
            if len(words) > 1 and words[0] in ("from", "import") and words[1].split(".")[0] in heavy:
                wrong.append(f"{path.name}:{number}")
    assert wrong == []
