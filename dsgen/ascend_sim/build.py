"""Building the stub libraries of CANN once per torch, torch_npu and source text, into a folder that looks like CANN's.

Packages are looked for, never imported: this runs in processes that must stay light.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsgen.findings import DsgenError
from dsgen.resources import CACHE_VARIABLE, cache_folder

SOURCES = Path(__file__).resolve().parent / "csrc"
OVERRIDDEN_OPS = SOURCES / "host_ops" / "overridden_ops.txt"
"""The aten operators whose torch_npu kernels are replaced, one a line without `aten::`."""

CANN_VERSION = "8.5.0"
"""The version of CANN that the stubs claim to be; torch_npu and DeepSpeed ask for it."""

_EMPTY_LIBRARIES = ("acl_op_compiler", "ge_runner", "graph", "acl_tdt_channel")
"""Libraries that torch_npu is linked against; what it needs of them stands in libascendcl.so."""

_FLAGS = ("-std=c++20", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", f'-DDSGEN_SIMULATED_CANN="{CANN_VERSION}"')

_SET_ENV = """\
# Written by dsgen: makes torch_npu run on the simulated NPU. To be sourced, as CANN's set_env.sh.
export DSGEN_SIMULATED_NPU=1
export ASCEND_HOME_PATH={home}
export ASCEND_OPP_PATH={home}/opp
export LD_LIBRARY_PATH={home}/lib64${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}
"""


class ToolkitMissing(DsgenError):
    """The machine lacks what the simulated NPU is built from or runs on."""


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What the stubs are built from."""

    compiler: str
    torch: Path
    torch_npu: Path
    versions: str


def why_not() -> str | None:
    """Why the simulated NPU cannot be built here, in one line with the remedy; None when it can."""
    try:
        _find_parts()
    except ToolkitMissing as missing:
        return f"{missing.message}: {missing.help}"
    return None


def build() -> Path:
    """Folder of the simulated CANN (`lib64/`, `opp/`, `set_env.sh`, ...), compiled when it is not in the cache yet.

    The cache is `cache_folder("ascend-sim")`. Of several processes one compiles, for about a minute, and the others
    wait. Raises ToolkitMissing, with the line that installs it, when g++, torch or torch_npu is missing, and
    DsgenError when the compiler fails or the cache cannot be written.
    """
    parts = _find_parts()
    try:
        root = cache_folder("ascend-sim")
        folder = root / f"{parts.versions}-{_fingerprint(parts)}"
        if folder.is_dir():
            return folder
        root.mkdir(parents=True, exist_ok=True)
        with _locked(folder.with_name(f"{folder.name}.lock")):
            if not folder.is_dir():
                _build_into(folder, parts)
    except OSError as error:
        raise DsgenError(
            f"the simulated NPU cannot be written: {error}",
            help=f"set {CACHE_VARIABLE} to a folder that can be written",
        ) from error
    return folder


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _find_parts() -> _Parts:
    compiler = shutil.which(os.environ.get("CXX") or "g++")
    if compiler is None:
        raise ToolkitMissing(
            f"the simulated NPU needs a C++ compiler, and there is no {os.environ.get('CXX') or 'g++'}",
            help="apt-get install g++",
        )
    torch, torch_version = _package("torch")
    torch_npu, npu_version = _package("torch_npu")
    wanted = torch_version.split("+")[0]
    if npu_version.split(".post")[0] != wanted:
        raise ToolkitMissing(
            f"torch_npu {npu_version} does not belong to torch {torch_version}",
            help=f"pip install torch_npu=={wanted}",
        )
    return _Parts(
        compiler=compiler, torch=torch, torch_npu=torch_npu, versions=f"{torch_version}-{npu_version}".replace("+", "_")
    )


def _package(name: str) -> tuple[Path, str]:
    """Folder and version of an installed package."""
    spec = importlib.util.find_spec(name)
    folder = next(iter(spec.submodule_search_locations or ()), None) if spec else None
    if folder is None:
        raise ToolkitMissing(
            f"the simulated NPU needs {name}, which is not installed in this Python",
            help="pip install 'dsgen[train,npu]'",
        )
    return Path(folder), importlib.metadata.version(name)


def _fingerprint(parts: _Parts) -> str:
    """Of all that decides what the compiler makes."""
    digest = hashlib.sha256(f"{platform.machine()} {parts.compiler} {CANN_VERSION} {_SET_ENV}".encode())
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(SOURCES)}\0".encode() + path.read_bytes())
    digest.update(Path(__file__).read_bytes())
    return digest.hexdigest()[:16]


def _build_into(folder: Path, parts: _Parts) -> None:
    """Make `folder`, completely or not at all."""
    partial = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", dir=folder.parent))
    try:
        _lay_out(partial, folder)
        _compile(partial / "lib64", parts)
        partial.chmod(0o755)
        partial.rename(folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _lay_out(partial: Path, folder: Path) -> None:
    # torch_npu refuses to be imported without these folders.
    for name in ("lib64", "opp", "runtime", "compiler", "include"):
        (partial / name).mkdir()
    # Where DeepSpeed's NPU builders read the version.
    (partial / "ascend_toolkit_install.info").write_text(f"package_name=simulated NPU\nversion={CANN_VERSION}\n")
    (partial / "set_env.sh").write_text(_SET_ENV.format(home=shlex.quote(str(folder))))
    shutil.copy(OVERRIDDEN_OPS, partial / "lib64")


def _compile(target: Path, parts: _Parts) -> None:
    """Compile and link all libraries into the folder `target`."""
    headers = {
        "acl": [parts.torch_npu / "include/third_party/acl/inc"],
        "hccl": [parts.torch_npu / "include", parts.torch_npu / "include/third_party/hccl/inc/hccl"],
        "torch": [parts.torch / "include", parts.torch / "include/torch/csrc/api/include"],
    }
    folders = [f"-L{folder}" for folder in (target, parts.torch / "lib", parts.torch_npu / "lib")]
    libraries = {
        # What torch_npu is linked against, in parts: name, folder of the sources, headers, libraries.
        "ascendcl": ("ascendcl", ("acl",), ("-ldl",)),
        "hccl": ("hccl", ("acl", "hccl", "torch"), ("-lascendcl",)),
        "dsgen_host_ops": ("host_ops", ("acl", "torch"), ("-lc10", "-ltorch_cpu", "-ltorch_npu")),
    }
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch, ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects: dict[str, list[Path]] = {}
        waiting = []
        for name, (folder, needed, _) in libraries.items():
            includes = [f"-isystem{path}" for group in needed for path in headers[group]]
            objects[name] = []
            for source in sorted((SOURCES / folder).glob("*.cpp")):
                made = Path(scratch) / f"{folder}-{source.stem}.o"
                objects[name].append(made)
                command = [parts.compiler, *_FLAGS, f"-I{SOURCES}", *includes, "-c", str(source), "-o", str(made)]
                waiting.append(pool.submit(_run, command))
        try:
            for task in waiting:
                task.result()
        except DsgenError:
            pool.shutdown(cancel_futures=True)
            raise
        for name, (_, _, needed) in libraries.items():
            _link(parts.compiler, target, name, [*map(str, objects[name]), *folders, *needed])
        for name in _EMPTY_LIBRARIES:
            _link(parts.compiler, target, name, [*folders, "-Wl,--no-as-needed", "-lascendcl"])


def _link(compiler: str, target: Path, name: str, arguments: list[str]) -> None:
    # torch_npu's library has symbols that only the finished set of stubs defines.
    options = ["-shared", f"-Wl,-soname,lib{name}.so", "-Wl,-rpath,$ORIGIN", "-Wl,--allow-shlib-undefined"]
    _run([compiler, *options, "-o", str(target / f"lib{name}.so"), *arguments])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        tail = done.stderr[-4000:]
        raise DsgenError(
            f"the simulated NPU could not be compiled ({done.returncode}): {shlex.join(command)}\n{tail}",
            help="the stubs fit the versions of constraints.txt; with another torch_npu they may need work",
        )
