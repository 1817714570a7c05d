"""From a checkpoint to a folder that transformers (or, for an adapter, peft) loads: safetensors, a shard at a time."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dsgen.runtime.checkpoints import (
    FOLDER,
    Manifest,
    complete_checkpoints,
    name_of,
    read_manifest,
    read_model_settings,
)
from dsgen.runtime.models import torch_dtype
from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.settings import Model

SHARD_BYTES = 2 << 30
_ADAPTER_NAME = re.compile(r"\.default(?=\.)")


def export(run_dir: Path, out: Path, *, step: int | None = None, dtype: str | None = None) -> Path:
    """Write the weights of a run's newest whole checkpoint, or of `step`, into the new folder `out`; returns it.

    `dtype` (fp32, fp16 or bf16) defaults to the run's own. A run with an adapter gives the adapter alone. Tensors are
    gathered from the ranks' files one after the other, so that memory holds one shard of 2 GiB. Raises RuntimeProblem
    when there is no whole checkpoint, `out` exists, or the checkpoint lacks weights of the model.
    """
    if out.exists():
        raise RuntimeProblem(f"{out} exists already", "name a folder that does not")
    checkpoint, manifest = _find(run_dir, step)
    settings = read_model_settings(checkpoint)
    partial = out.with_name(f"{out.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    wanted = torch_dtype(dtype or settings.dtype)
    tensors = _tensors(checkpoint, manifest)
    if settings.adapter is not None:
        _write_adapter(partial, settings, tensors, wanted)
    else:
        _write_model(partial, settings, tensors, wanted)
    partial.rename(out)
    return out


def _find(run_dir: Path, step: int | None) -> tuple[Path, Manifest]:
    if step is not None:
        folder = run_dir / FOLDER / name_of(step)
        return folder, read_manifest(folder)
    problems = []
    for folder in complete_checkpoints(run_dir):
        try:
            return folder, read_manifest(folder)
        except RuntimeProblem as problem:
            problems.append(problem.message)
    raise RuntimeProblem("; ".join([f"{run_dir} holds no whole checkpoint", *problems]))


def _load(path: Path) -> Any:
    import torch

    # Mapped, not read: tensors come into memory when they are used.
    return torch.load(path, map_location="cpu", mmap=True, weights_only=False)


def _tensors(checkpoint: Path, manifest: Manifest) -> Iterator[tuple[str, Any]]:
    """Names and whole tensors of everything that was saved, each tied weight once."""
    if manifest.zero_stage < 3:
        state = _load(checkpoint / "mp_rank_00_model_states.pt")
        shared = state.get("shared_params") or {}
        for name, tensor in state["module"].items():
            if name not in shared:
                yield name, tensor
        return
    yield from _partitioned_tensors(checkpoint, manifest.world_size)


def _partitioned_tensors(checkpoint: Path, world_size: int) -> Iterator[tuple[str, Any]]:
    """Stage 3: each rank's flat fp32 partition holds 1/n of every parameter, one after the other, padded at the end."""
    import torch

    model = _load(checkpoint / "zero_pp_rank_0_mp_rank_00_model_states.pt")
    flats = []
    for rank in range(world_size):
        (path,) = checkpoint.glob(f"*zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        groups = _load(path)["optimizer_state_dict"]["fp32_flat_groups"]
        flats.append(_Flat(groups))
    shared = model.get("shared_params") or {}
    for shapes in model["param_shapes"]:
        for name, shape in shapes.items():
            size = shape.numel()
            share = -(-size // world_size)
            parts = [flat.take(share) for flat in flats]
            if name not in shared:
                yield name, torch.cat(parts)[:size].view(shape)


class _Flat:
    """One rank's sub-groups read as one long vector."""

    def __init__(self, groups: Sequence[Any]) -> None:
        self._groups = list(groups)
        self._group = self._offset = 0

    def take(self, count: int) -> Any:
        """The next `count` elements."""
        import torch

        parts = []
        while count:
            if self._group == len(self._groups):
                raise RuntimeProblem("the checkpoint holds fewer elements than its shapes name")
            group = self._groups[self._group]
            part = group[self._offset : self._offset + count]
            parts.append(part)
            count -= part.numel()
            self._offset += part.numel()
            if self._offset == group.numel():
                self._group, self._offset = self._group + 1, 0
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def _write_model(folder: Path, settings: Model, tensors: Iterator[tuple[str, Any]], dtype: Any) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    fields = dict(settings.config)
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    config.dtype = dtype
    config.save_pretrained(folder)
    needed = {name for name, _ in model.named_parameters()}
    files: dict[str, str] = {}
    total = 0
    for number, shard in enumerate(_shards(tensors, needed, dtype), start=1):
        name = f"model-{number:05d}.safetensors"
        total += _save(shard, folder / name)
        files.update(dict.fromkeys(shard, name))
    missing = sorted(needed - files.keys())
    if missing:
        raise RuntimeProblem(f"the checkpoint lacks {len(missing)} weights of the model, such as {missing[0]}")
    index = {"metadata": {"total_size": total}, "weight_map": files}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2, sort_keys=True) + "\n")


def _shards(tensors: Iterator[tuple[str, Any]], needed: set[str], dtype: Any) -> Iterator[dict[str, Any]]:
    shard: dict[str, Any] = {}
    size = 0
    for name, tensor in tensors:
        if name not in needed:
            continue
        # A copy of its own: safetensors refuses views, and the mapped file should not be held.
        shard[name] = tensor.to(dtype, copy=True).contiguous()
        size += shard[name].nbytes
        if size >= SHARD_BYTES:
            yield shard
            shard, size = {}, 0
    if shard:
        yield shard


def _write_adapter(folder: Path, settings: Model, tensors: Iterator[tuple[str, Any]], dtype: Any) -> None:
    from dsgen.runtime.adapters import lora_config

    assert settings.adapter is not None
    config = lora_config(settings.adapter)
    config.base_model_name_or_path = settings.weights
    config.inference_mode = True
    config.save_pretrained(str(folder))
    shard = {
        _ADAPTER_NAME.sub("", name): tensor.to(dtype, copy=True).contiguous()
        for name, tensor in tensors
        if "lora_" in name
    }
    if not shard:
        raise RuntimeProblem("the checkpoint holds no weights of an adapter")
    _save(shard, folder / "adapter_model.safetensors")


def _save(shard: dict[str, Any], path: Path) -> int:
    from safetensors.torch import save_file

    save_file(shard, path, metadata={"format": "pt"})
    return sum(tensor.nbytes for tensor in shard.values())


def main(argv: Sequence[str] | None = None) -> int:
    """`python -m dsgen.runtime.export RUN_DIR OUT`: prints the folder written, or the problem (exit code 2)."""
    parser = argparse.ArgumentParser(prog="python -m dsgen.runtime.export", description=export.__doc__)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--step", type=int, help="optimizer step of the checkpoint (default: the newest whole one)")
    parser.add_argument("--dtype", choices=("fp32", "fp16", "bf16"), help="default: as trained")
    given = parser.parse_args(argv)
    try:
        print(export(given.run_dir, given.out, step=given.step, dtype=given.dtype))
    except RuntimeProblem as problem:
        print(f"error: {problem.message}" + (f"\n  help: {problem.help}" if problem.help else ""), file=sys.stderr)
        return problem.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
