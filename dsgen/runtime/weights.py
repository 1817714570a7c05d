"""Filling a model with weights: drawn from a seed, or read from safetensors files, a few parameters at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsgen.resources import local_path
from dsgen.runtime.memory import trim_heap
from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.settings import Settings

_GATHERED_ELEMENTS = 1 << 25
"""Partitioned parameters are gathered until they hold this many elements together (at least one of them)."""
_NAMED = 8


def draw_weights(model: Any, seed: int, *, partitioned: bool) -> None:
    """Random weights by the model's own rules, each module from a generator seeded with the seed and its name.

    Seeding module by module makes the weights independent of what else was drawn before, hence of the ZeRO stage.
    Partitioned parameters are gathered for one module at a time; rank 0 draws, the others receive. The state of
    torch's generators is left as it was.
    """
    import torch
    from transformers import PreTrainedModel
    from transformers.initialization import guard_torch_init_functions

    gathered = 0

    def walk(name: str, module: Any, owner: Any) -> None:
        nonlocal gathered
        for child_name, child in module.named_children():
            path = f"{name}.{child_name}" if name else child_name
            walk(path, child, child if isinstance(child, PreTrainedModel) else owner)
        parameters = list(module.parameters(recurse=False))
        # Some models fill the weights of a module's children from the module.
        for child in module.children():
            if not isinstance(child, PreTrainedModel):
                parameters.extend(child.parameters(recurse=False))
        with _whole(parameters, partitioned) as draws:
            if draws:
                torch.manual_seed(_seed_of(seed, name))
                owner._initialize_weights(module)
        gathered += sum(_size(parameter) for parameter in parameters)
        if partitioned and gathered > _GATHERED_ELEMENTS:
            gathered = 0
            trim_heap()

    with torch.random.fork_rng(devices=[]), torch.no_grad(), guard_torch_init_functions():
        walk("", model, model)


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little") >> 1


@contextmanager
def _whole(parameters: list[Any], partitioned: bool) -> Iterator[bool]:
    """`parameters` as whole tensors; what rank 0 does to them reaches every rank. Gives whether to do it here."""
    if not partitioned or not parameters:
        yield True
        return
    import deepspeed

    with deepspeed.zero.GatheredParameters(parameters, modifier_rank=0):
        yield deepspeed.comm.get_rank() == 0


@dataclass(frozen=True)
class WeightFiles:
    """Safetensors files and the parameters in them."""

    source: str
    files: dict[str, Path]
    """Parameter name to file."""


def find_weights(settings: Settings, base_dir: Path) -> WeightFiles | None:
    """Where the weights of the settings stand; None for random weights.

    A local file or folder is taken as it is; any other name is fetched from the hub (HF_HUB_OFFLINE and HF_ENDPOINT
    are honoured). Raises RuntimeProblem when there are no safetensors files.
    """
    name = settings.model.weights
    if name is None:
        return None
    path = local_path(base_dir, name)
    if not path.exists():
        if name.startswith((".", "/", "~")) or name.count("/") != 1:
            raise RuntimeProblem(f"there are no weights at {path}")
        path = _download(name)
    if path.is_file():
        if path.suffix != ".safetensors":
            raise RuntimeProblem(
                f"{path} is no .safetensors file", "save the model with save_pretrained of transformers"
            )
        return WeightFiles(name, dict.fromkeys(_names_in(path), path))
    index = path / "model.safetensors.index.json"
    if index.exists():
        try:
            table = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        except (OSError, ValueError, KeyError) as error:
            raise RuntimeProblem(f"{index} cannot be read: {error}") from error
        missing = sorted({file for file in table.values() if not (path / file).exists()})
        if missing:
            raise RuntimeProblem(f"{path} lacks {_few(missing)}, which its index names", "fetch the weights again")
        return WeightFiles(name, {key: path / file for key, file in table.items()})
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise RuntimeProblem(
            f"{path} holds no .safetensors file", "convert the model: load it with transformers and save_pretrained it"
        )
    return WeightFiles(name, {key: file for file in files for key in _names_in(file)})


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=["*.safetensors", "*.json"]))
    except Exception as error:
        raise RuntimeProblem(
            f"weights {name} are no local path and cannot be fetched from the hub: {error}",
            "fetch them where there is a network (`hf download`), and name the folder or set HF_HUB_OFFLINE=1",
        ) from error


def _names_in(path: Path) -> list[str]:
    from safetensors import safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return list(file.keys())
    except Exception as error:
        raise RuntimeProblem(f"{path} is no whole safetensors file: {error}", "fetch it again") from error


def load_weights(model: Any, weights: WeightFiles, *, partitioned: bool) -> None:
    """Copy the weights into the model, converted to its dtype; names and shapes must fit exactly.

    Tensors are read one by one from the files; partitioned parameters are gathered a few at a time and only rank 0
    reads. Raises RuntimeProblem, before anything is read, when names or shapes differ. A tied weight may be missing;
    buffers in the files are ignored.
    """
    import torch
    from safetensors import safe_open

    own = dict(model.named_parameters(remove_duplicate=False))
    buffers = {name for name, _ in model.named_buffers()}
    given = {name: file for name, file in weights.files.items() if name not in buffers}
    renamed = _with_prefix(given, own, getattr(model, "base_model_prefix", ""))
    unexpected = sorted(renamed.keys() - own.keys())
    held = {id(own[name]) for name in renamed if name in own}
    missing = sorted(name for name, parameter in own.items() if id(parameter) not in held)
    if missing or unexpected:
        parts = []
        if missing:
            parts.append(f"{len(missing)} of the model's weights are missing there ({_few(missing)})")
        if unexpected:
            parts.append(f"{len(unexpected)} weights there have no place in the model ({_few(unexpected)})")
        raise RuntimeProblem(
            f"the weights {weights.source} do not fit the model: {' and '.join(parts)}",
            "use the config.json that belongs to the weights",
        )
    _check_shapes(weights, renamed, own)
    for file, names in _by_file(renamed):
        with safe_open(file, framework="pt") as tensors:
            for group in _groups(names, own):
                with _whole([own[name] for name in group], partitioned) as reads, torch.no_grad():
                    if reads:
                        for name in group:
                            own[name].data.copy_(tensors.get_tensor(renamed[name][1]))
                if partitioned:
                    trim_heap()


def _with_prefix(given: dict[str, Path], own: dict[str, Any], prefix: str) -> dict[str, tuple[Path, str]]:
    """Names of the model to file and name in the file; weights of the bare model lack its prefix (`model.`)."""
    result = {}
    for name, file in given.items():
        longer = f"{prefix}.{name}"
        result[longer if name not in own and longer in own else name] = (file, name)
    return result


def _check_shapes(weights: WeightFiles, renamed: dict[str, tuple[Path, str]], own: dict[str, Any]) -> None:
    from safetensors import safe_open

    wrong = []
    for file, names in _by_file(renamed):
        with safe_open(file, framework="pt") as tensors:
            for name in names:
                there = tuple(tensors.get_slice(renamed[name][1]).get_shape())
                here = tuple(getattr(own[name], "ds_shape", own[name].shape))
                if there != here:
                    wrong.append(f"{name} is {list(there)} there and {list(here)} in the model")
    if wrong:
        raise RuntimeProblem(
            f"the weights {weights.source} do not fit the model: {_few(wrong)}",
            "use the config.json that belongs to the weights",
        )


def _by_file(renamed: dict[str, tuple[Path, str]]) -> list[tuple[Path, list[str]]]:
    files: dict[Path, list[str]] = {}
    for name, (file, _) in renamed.items():
        files.setdefault(file, []).append(name)
    return sorted(files.items())


def _groups(names: Iterable[str], own: dict[str, Any]) -> Iterator[list[str]]:
    group: list[str] = []
    size = 0
    for name in names:
        elements = _size(own[name])
        if group and size + elements > _GATHERED_ELEMENTS:
            yield group
            group, size = [], 0
        group.append(name)
        size += elements
    if group:
        yield group


def _size(parameter: Any) -> int:
    """Elements of a whole parameter, partitioned or not."""
    return int(getattr(parameter, "ds_numel", None) or parameter.numel())


def _few(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
