"""Runs the real DeepSpeed engine on CPU, rank 0 of several by torch's fake process group, and counts live storages.

Reads one JSON object a line, `{"ds_config", "model", "dtype", "ranks", "rank", "micro", "sequence", "steps",
"checkpoint_every", "chunk", "adapter", "order"}`, and answers with one line: `{"peaks": {phase: bytes}, "ever": bytes,
"optimizer": name}`. Where `order` is true there is also `"order": [[begins, elements], ...]`: what the coordinator of
stage 3 was asked for in the last micro batch, modules that begin or may go, with the elements of their own parameters.
A phase's peak is the highest of all micro batches of the last step, `ever` that of all steps. The phase `loss` begins
with the output head and ends, on the way back, where the gradients of its weight or its input are known.
Collectives do nothing: the values are wrong, the storages are right.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

PLAIN_LINEAR = torch.nn.functional.linear
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def _mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a.new_zeros((*a.shape[:-1], b.shape[-1]))


# The values of matrix products change no storage, and 16-bit ones take most of the time on CPU.
PRODUCTS: dict[Any, Callable[..., torch.Tensor]] = {
    torch.ops.aten.mm.default: _mm,
    torch.ops.aten.bmm.default: _mm,
    torch.ops.aten.addmm.default: lambda bias, a, b, **_: _mm(a, b),
}


class Storages(TorchDispatchMode):  # type: ignore[misc]
    """Every storage that an operator returns, from its first sight to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[int, Any]] = {}
        self.bytes = 0
        self.peaks: dict[str, int] = {}
        self.phase = "model"

    def enter(self, phase: str) -> None:
        """From here on count for this phase, too."""
        self.phase = phase
        self.peaks[phase] = max(self.peaks.get(phase, 0), self.bytes)

    def follow(self, before: str, after: str) -> Callable[..., None]:
        """A hook that goes from one phase to another."""

        def hook(*_: Any) -> None:
            if self.phase == before:
                self.enter(after)

        return hook

    def note(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        known = self.live.get(key)
        if known is not None and known[0] == size:
            return
        if known is not None:
            self.bytes -= known[0]
        self.live[key] = (size, weakref.ref(storage, partial(self.forget, key)))
        self.bytes += size
        self.peaks[self.phase] = max(self.peaks.get(self.phase, 0), self.bytes)

    def forget(self, key: int, _: Any) -> None:
        """The storage has gone."""
        size, _ = self.live.pop(key, (0, None))
        self.bytes -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        product = PRODUCTS.get(func)
        result = product(*args) if product is not None else func(*args, **(kwargs or {}))
        for each in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(each, torch.Tensor) and each.device.type != "meta":
                self.note(each)
        return result


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """The answer to a job."""
    import deepspeed
    from transformers import AutoConfig, AutoModelForCausalLM

    from dsgen.runtime.losses import chunk_loss
    from dsgen.runtime.recompute import checkpoint_activations

    # Stage 3 replaces it for the rest of the process (runtime/zero/partition_parameters.py).
    torch.nn.functional.linear = PLAIN_LINEAR
    fields = dict(job["model"])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config.use_cache = False
    dtype = DTYPES[job["dtype"]]
    ds_config = dict(job["ds_config"])
    if job["dtype"] == "fp16":
        # A step that overflows makes no states.
        ds_config["fp16"] = {**ds_config["fp16"], "loss_scale": 1}
    storages = Storages()
    with ExitStack() as stack:
        stack.enter_context(storages)
        with ExitStack() as building:
            if ds_config["zero_optimization"]["stage"] == 3:
                building.enter_context(deepspeed.zero.Init(config_dict_or_path=ds_config))
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=job["attention"])
        if job["chunk"]:
            chunk_loss(model, job["chunk"])
        mark_loss(model, storages, job)
        if job["checkpoint_every"]:
            checkpoint_activations(model, job["checkpoint_every"])
        if job["adapter"]:
            from peft import LoraConfig, get_peft_model

            said = job["adapter"]
            lora = LoraConfig(
                r=said["rank"],
                target_modules=said["targets"],
                lora_dropout=said["dropout"],
                task_type="CAUSAL_LM",
            )
            model = get_peft_model(model, lora, autocast_adapter_dtype=False)
        model.train()
        storages.enter("initialize")
        engine, _, _, _ = deepspeed.initialize(
            model=model, model_parameters=[p for p in model.parameters() if p.requires_grad], config=ds_config
        )
        order = stack.enter_context(watched_coordinator()) if job.get("order") else None
        ever = 0
        for _ in range(job["steps"]):
            ever = max(ever, most(storages.peaks))
            storages.peaks = {phase: storages.peaks[phase] for phase in ("model", "initialize")}
            for micro_batch in range(1, ds_config["gradient_accumulation_steps"] + 1):
                ids = torch.randint(0, config.vocab_size, (job["micro"], job["sequence"]))
                labels = ids.clone()
                storages.enter("forward")
                if order:
                    order.clear()
                loss = engine(input_ids=ids, labels=labels).loss
                engine.backward(loss)
                del loss
                if micro_batch == ds_config["gradient_accumulation_steps"]:
                    storages.enter("step")
                engine.step()
            storages.enter("between steps")
    assert not engine.skipped_steps
    name = type(engine.optimizer).__name__
    engine.destroy()
    answer = {"peaks": storages.peaks, "ever": max(ever, most(storages.peaks)), "optimizer": name}
    return answer if order is None else {**answer, "order": order}


@contextmanager
def watched_coordinator() -> Iterator[list[tuple[bool, int]]]:
    """What the coordinator is asked for, in order."""
    from deepspeed.runtime.zero.partitioned_param_coordinator import PartitionedParameterCoordinator as Coordinator
    from deepspeed.runtime.zero.partitioned_param_coordinator import iter_params

    asked: list[tuple[bool, int]] = []

    def watched(begins: bool, function: Callable[..., None]) -> Callable[..., None]:
        def call(coordinator: Any, module: Any, **where: bool) -> None:
            asked.append((begins, sum(p.ds_numel for p in iter_params(module))))
            function(coordinator, module, **where)

        return call

    kept = Coordinator.fetch_sub_module, Coordinator.release_sub_module
    Coordinator.fetch_sub_module, Coordinator.release_sub_module = watched(True, kept[0]), watched(False, kept[1])
    yield asked
    Coordinator.fetch_sub_module, Coordinator.release_sub_module = kept


def most(peaks: dict[str, int]) -> int:
    """The highest of all phases behind the building of the model."""
    return max(size for phase, size in peaks.items() if phase != "model")


def mark_loss(model: Any, storages: Storages, job: dict[str, Any]) -> None:
    """Let the model tell where the loss begins and ends."""
    head = model.get_output_embeddings()
    head.register_forward_pre_hook(storages.follow("forward", "loss"))
    behind = storages.follow("loss", "backward")
    if not job["adapter"] and head.weight is not model.get_input_embeddings().weight:
        head.weight.register_hook(behind)

    def watch(*arguments: Any) -> None:
        if arguments[-1].requires_grad:
            arguments[-1].register_hook(behind)

    model.base_model.norm.register_forward_hook(watch)


def main() -> None:
    # What a build or DeepSpeed prints must not get among the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    ranks, rank = sys.argv[1:3]
    os.environ.update(
        DS_ACCELERATOR="cpu",
        RANK=rank,
        WORLD_SIZE=ranks,
        LOCAL_RANK="0",
        LOCAL_SIZE=ranks,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    )
    torch.set_num_threads(1)
    import deepspeed
    import deepspeed.comm.torch
    import transformers.models.llama.modeling_llama  # noqa: F401
    from deepspeed.runtime.fp16 import unfused_optimizer
    from deepspeed.runtime.zero import partitioned_param_coordinator, stage3, stage_1_and_2, utils
    from torch.testing._internal.distributed.fake_pg import FakeStore

    # Its buffers in /dev/shm wait for real neighbours. The attribute of that name is torch itself.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    torch.distributed.init_process_group(backend="fake", store=FakeStore(), rank=int(rank), world_size=int(ranks))
    deepspeed.init_distributed(dist_backend="fake")
    # Says no where a processor has no fast arithmetic for it.
    type(deepspeed.accelerator.get_accelerator()).is_fp16_supported = lambda _: True
    for module in (utils, partitioned_param_coordinator):
        for name in ("assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks"):
            if hasattr(module, name):
                # They compare with what no other rank has sent.
                setattr(module, name, lambda *_, **__: None)
    # What no other rank has sent may be infinite; a step that is skipped makes no states.
    for optimizer in (stage_1_and_2.DeepSpeedZeroOptimizer, stage3.DeepSpeedZeroOptimizer_Stage3):
        checked = optimizer.has_overflow
        optimizer.has_overflow = lambda *a, checked=checked, **k: checked(*a, **k) and False
    for module in (stage_1_and_2, stage3, unfused_optimizer):
        module.is_invalid_grad_norm = lambda _: False
    print(json.dumps({"ready": deepspeed.__version__}), file=answers)
    for line in sys.stdin:
        answer = measure(json.loads(line))
        gc.collect()
        print(json.dumps(answer), file=answers)
    # The group has no other ranks to wait for.
    os._exit(0)


if __name__ == "__main__":
    main()
