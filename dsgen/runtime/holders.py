"""What holds memory: every storage that a rank can reach, with its size and its part of the job.

Storages are counted, not tensors: views of one flat buffer are one holder with several names.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from dsgen.runtime.journal import write_atomically

if TYPE_CHECKING:
    from dsgen.runtime.session import Session

FOLDER = "memory"
LISTED = 50
_NAMES = 4
_DEPTH = 4

# A word in the name of an optimizer's attribute -> part; the first that fits counts. DeepSpeed 0.19.8:
# runtime/zero/stage_1_and_2.py, runtime/zero/stage3.py, runtime/bf16_optimizer.py, runtime/fp16/fused_optimizer.py.
_OF_OPTIMIZER = (
    ("ipg", "communication buckets"),
    ("bucket", "communication buckets"),
    ("grad", "gradients"),
    ("fp32", "master weights"),
    ("bit16", "parameters"),
    ("bf16", "parameters"),
    ("fp16", "parameters"),
    ("lp_param", "parameters"),
    ("param_groups", "master weights"),
    ("state", "optimizer states"),
)


@dataclass
class Holder:
    """One storage."""

    part: str
    """parameters, gradients, master weights, optimizer states, communication buckets, activations or other."""
    bytes: int
    device: str
    dtype: str
    shape: list[int]
    """Of the tensor that fills it, else its number of elements."""
    names: list[str] = field(default_factory=list)
    """Where it was found, at most four places; none for what only the garbage collector knows."""
    more_names: int = 0


@dataclass
class Activations:
    """Tensors that autograd kept for the backward pass: storage -> (tensor's description, module that kept it)."""

    kept: dict[tuple[str, int], Holder] = field(default_factory=dict)


class _Found:
    def __init__(self) -> None:
        self.holders: dict[tuple[str, int], Holder] = {}

    def add(self, part: str, name: str, tensor: Any) -> None:
        described = _describe(part, tensor)
        if described is None:
            return
        key, new = described
        holder = self.holders.setdefault(key, new)
        if name in holder.names:
            return
        if len(holder.names) < _NAMES:
            holder.names.append(name)
        else:
            holder.more_names += 1


def find_holders(engine: Any, activations: Activations | None = None) -> list[Holder]:
    """Every storage that is alive and can be reached, the largest first. `engine` is DeepSpeed's.

    A storage belongs to the part where it is found first: the model's parameters and gradients, the optimizer's
    states, the attributes of DeepSpeed's optimizer by their names, what autograd keeps, then everything else that
    Python knows of.
    """
    found = _Found()
    _of_model(found, engine.module)
    _of_optimizer(found, engine.optimizer)
    for key, kept in (activations.kept if activations else {}).items():
        found.holders.setdefault(key, kept)
    for item in gc.get_objects():
        described = _describe("other", item) if _is_tensor(item) else None
        if described is not None:
            found.holders.setdefault(*described)
    return sorted(found.holders.values(), key=lambda holder: -holder.bytes)


def parts_of(holders: Sequence[Holder], device: str) -> dict[str, int]:
    """Bytes of each part on the devices of kind `device` (`cpu`, `npu`, `cuda`), the largest part first."""
    sums: dict[str, int] = {}
    for holder in holders:
        if holder.device.split(":")[0] == device:
            sums[holder.part] = sums.get(holder.part, 0) + holder.bytes
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


@contextmanager
def keeping_track(module: Any) -> Iterator[Activations]:
    """Notes what autograd keeps for the backward pass while the block runs, and which module of the model kept it.

    Recomputed layers (activation checkpointing) keep their input alone, as in any other step.
    """
    import torch

    activations = Activations()
    names = {id(each): name for name, each in module.named_modules()}
    running: list[str] = []

    def enter(each: Any, inputs: Any) -> None:
        running.append(names.get(id(each), type(each).__name__))

    def leave(each: Any, inputs: Any, output: Any) -> None:
        if running:
            running.pop()

    def pack(tensor: Any) -> Any:
        described = _describe("activations", tensor)
        if described is not None:
            key, holder = described
            holder.names.append(running[-1] if running else "loss")
            activations.kept.setdefault(key, holder)
        return tensor

    handles = [
        torch.nn.modules.module.register_module_forward_pre_hook(enter),
        torch.nn.modules.module.register_module_forward_hook(leave, always_call=True),
    ]
    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            yield activations
    finally:
        for handle in handles:
            handle.remove()


class Snapshot:
    """The largest holders at some moments of one optimizer step; written as `memory/step-N-rank-R.json`."""

    def __init__(self, run: Session, step: int) -> None:
        self._run = run
        self._step = step
        self._moments: list[dict[str, Any]] = []

    def take(self, moment: str, engine: Any, activations: Activations | None = None) -> None:
        """Look at what is held now. Waits for the device's queued work."""
        accelerator = self._run.accelerator
        accelerator.synchronize()
        holders = find_holders(engine, activations)
        devices = sorted({holder.device.split(":")[0] for holder in holders})
        counts = self._run.settings.accelerator != "cpu"
        self._moments.append(
            {
                "moment": moment,
                "allocated_bytes": int(accelerator.memory_allocated()) if counts else None,
                "parts": {device: parts_of(holders, device) for device in devices},
                "holders": [asdict(holder) for holder in holders[:LISTED]],
                "not_listed": {"holders": len(holders[LISTED:]), "bytes": sum(h.bytes for h in holders[LISTED:])},
            }
        )

    def write(self) -> None:
        """Write the file of this rank; rank 0 says where, and what was largest."""
        run = self._run
        rank = run.ranks.rank
        path = run.run_dir / FOLDER / f"step-{self._step:08d}-rank-{rank}.json"
        content = {"step": self._step, "rank": rank, "accelerator": run.settings.accelerator, "moments": self._moments}
        write_atomically(path, json.dumps(content, indent=2) + "\n")
        run.journal.event("memory_snapshot", step=self._step, path=str(path.parent))
        if rank == 0:
            kind = run.settings.accelerator
            for moment in self._moments:
                parts = moment["parts"].get(kind, {})
                said = ", ".join(f"{part} {size / (1 << 20):,.1f} MiB" for part, size in list(parts.items())[:5])
                run.console.line(f"memory after {moment['moment']} of step {self._step}: {said}")


def _of_model(found: _Found, module: Any) -> None:
    for name, parameter in module.named_parameters():
        found.add("parameters", name, parameter)
        partition = getattr(parameter, "ds_tensor", None)
        if partition is not None:
            found.add("parameters", f"{name} (partition)", partition)
        if parameter.grad is not None:
            found.add("gradients", name, parameter.grad)
    for name, buffer in module.named_buffers():
        found.add("parameters", name, buffer)


def _of_optimizer(found: _Found, optimizer: Any) -> None:
    inner = getattr(optimizer, "optimizer", None)
    for each in (inner, optimizer):
        state = getattr(each, "state", None)
        if isinstance(state, Mapping):
            for number, values in enumerate(state.values()):
                for name, tensor in _tensors(values, f"state[{number}]"):
                    found.add("optimizer states", name, tensor)
    for each, prefix in ((optimizer, "optimizer"), (inner, "optimizer.optimizer")):
        for name, value in list(vars(each).items()) if hasattr(each, "__dict__") else []:
            part = next((part for word, part in _OF_OPTIMIZER if word in name), None)
            if part is not None and name != "state":
                for place, tensor in _tensors(value, f"{prefix}.{name}"):
                    found.add(part, place, tensor)


def _tensors(value: Any, place: str, depth: int = _DEPTH) -> Iterator[tuple[str, Any]]:
    """Tensors in nested containers and plain objects, with the way to them."""
    if _is_tensor(value):
        yield place, value
    elif depth == 0:
        return
    elif isinstance(value, Mapping):
        for number, (key, inner) in enumerate(value.items()):
            named = key if isinstance(key, str) else number
            yield from _tensors(inner, f"{place}[{named}]", depth - 1)
    elif isinstance(value, (list, tuple, set)):
        for number, inner in enumerate(value):
            yield from _tensors(inner, f"{place}[{number}]", depth - 1)
    elif type(value).__module__.startswith("deepspeed") and hasattr(value, "__dict__"):
        for name, inner in vars(value).items():
            yield from _tensors(inner, f"{place}.{name}", depth - 1)


def _is_tensor(item: Any) -> bool:
    import torch

    # isinstance would ask lazy objects for their class.
    return issubclass(type(item), torch.Tensor)


def _describe(part: str, tensor: Any) -> tuple[tuple[str, int], Holder] | None:
    """Key and description of a tensor's storage; None where there is none (empty, meta, fake)."""
    if tensor.device.type == "meta":
        return None
    try:
        storage = tensor.untyped_storage()
        address, size = storage.data_ptr(), storage.nbytes()
    except (NotImplementedError, RuntimeError):
        return None
    if not address or not size:
        return None
    device = str(tensor.device)
    dtype = str(tensor.dtype).removeprefix("torch.")
    whole = tensor.numel() * tensor.element_size() == size
    shape = list(tensor.shape) if whole else [size // tensor.element_size()]
    return (device, address), Holder(part, size, device, dtype, shape)
