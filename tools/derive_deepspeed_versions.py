"""Derive the keys of released versions of DeepSpeed that are not installed, and what changed between them.

    python tools/derive_deepspeed_versions.py              every release from 0.14.0 on
    python tools/derive_deepspeed_versions.py 0.19.9       one release, when it has come out
    python tools/derive_deepspeed_versions.py --history    only history.json, from the files that are there

Each release's source package is fetched from the package index, unpacked into a temporary folder and put before the
installed DeepSpeed for a run of `tools/derive_deepspeed_keys.py`; nothing of it is built. The environment needs the
libraries of the newest one (torch, pydantic, ...).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parent
DATA = TOOLS.parent / "dsgen" / "catalog" / "data" / "deepspeed"
FIRST = (0, 14, 0)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("versions", nargs="*", help="releases (default: every one from 0.14.0 on)")
    parser.add_argument("--history", action="store_true", help="fetch and derive nothing, write only history.json")
    parser.add_argument("--output", type=Path, default=DATA, help="folder to write into (default: %(default)s)")
    options = parser.parse_args(argv)
    if not options.history:
        with tempfile.TemporaryDirectory(prefix="deepspeed-") as folder:
            for version in options.versions or released():
                derive(version, Path(folder), options.output / f"{version}.json")
    documents = [json.loads(file.read_text(encoding="utf-8")) for file in version_files(options.output)]
    (options.output / "history.json").write_text(as_text(history(documents)), encoding="utf-8")
    return 0


def released() -> list[str]:
    """The releases on the package index, oldest first."""
    command = [sys.executable, "-m", "pip", "index", "versions", "deepspeed"]
    listing = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    found = re.search(r"^Available versions: (.*)$", listing, re.MULTILINE)
    if found is None:
        raise SystemExit("pip lists no versions of deepspeed")
    return sorted((each for each in found[1].split(", ") if number(each) >= FIRST), key=number)


def number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def derive(version: str, folder: Path, output: Path) -> None:
    """Write the file of one release; the folder is for what is fetched."""
    # Its setup.py, which pip runs to read the name and the version, wants torch and compiles nothing when told so.
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--no-binary", "deepspeed", "--dest", str(folder)]
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *options, f"deepspeed=={version}"],
        check=True,
        env={**os.environ, "DS_BUILD_OPS": "0"},
    )
    with tarfile.open(folder / f"deepspeed-{version}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    source = folder / f"deepspeed-{version}"
    subprocess.run(
        [sys.executable, "-W", "ignore", str(TOOLS / "derive_deepspeed_keys.py"), "--output", str(output)],
        check=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    got = json.loads(output.read_text(encoding="utf-8"))["deepspeed"]
    if got != version:
        raise SystemExit(f"{output}: derived from DeepSpeed {got} instead of {version}")


def version_files(folder: Path) -> list[Path]:
    """The files of single versions, oldest first."""
    return sorted(folder.glob("[0-9]*.json"), key=lambda file: number(file.stem))


def history(documents: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """What changed from one version to the next, from the documents of all versions, oldest first.

    `keys`: path -> the spans of versions that have it, each as its first and last version; only the first where it is
    still there. `defaults`: path -> [version, default before, default from that version on] for every change.
    """
    keys: dict[str, list[list[str]]] = {}
    defaults: dict[str, list[list[Any]]] = {}
    last: dict[str, Any] = {}
    before = ""
    for document in documents:
        version = document["deepspeed"]
        for path in document["keys"]:
            if not keys.setdefault(path, []) or len(keys[path][-1]) == 2:
                keys[path].append([version])
        for path, spans in keys.items():
            if path not in document["keys"] and len(spans[-1]) == 1:
                spans[-1].append(before)
        for path, entry in document["keys"].items():
            if "default" in entry:
                default = entry["default"]
                if path in last and last[path] != default:
                    defaults.setdefault(path, []).append([version, last[path], default])
                last[path] = default
        before = version
    return {"defaults": defaults, "keys": keys}


def as_text(document: Mapping[str, Any]) -> str:
    """JSON with one name a line, sorted."""
    parts = []
    for name, values in sorted(document.items()):
        lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(values[key])}" for key in sorted(values))
        parts.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    raise SystemExit(main())
