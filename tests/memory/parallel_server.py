"""Runs the real DeepSpeed engine on CPU with tensor or sequence parallelism, and counts live storages.

Like engine_server.py; a job has `"tensor"` and `"sequence_parallel"` besides, and the answer the elements of the rank's
parameters, `{"peaks", "optimizer", "elements"}`. Started with a port in place of `fake`, the ranks are real neighbours
by gloo: each reads the same jobs. Both give the same storages.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from contextlib import ExitStack
from typing import Any

import torch
from engine_server import DTYPES, Storages  # type: ignore[import-not-found]


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """The answer to a job."""
    import deepspeed
    from transformers import AutoConfig, AutoModelForCausalLM

    from dsgen.runtime.losses import chunk_loss
    from dsgen.runtime.recompute import checkpoint_activations

    fields = dict(job["model"])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields)
    config.use_cache = False
    dtype = DTYPES[job["dtype"]]
    tensor, shards = job["tensor"], job["sequence_parallel"]
    ds_config = dict(job["ds_config"])
    # DeepSpeed counts it over all ranks, those that share a layer included (runtime/config.py).
    ds_config.pop("train_batch_size", None)
    if tensor > 1:
        ds_config["tensor_parallel"] = {"autotp_size": tensor}
    if shards > 1:
        ds_config["sequence_parallel_size"] = shards
    _forget_groups()
    storages = Storages()
    with ExitStack() as stack:
        stack.enter_context(storages)
        with ExitStack() as building:
            if ds_config["zero_optimization"]["stage"] == 3 and tensor == 1:
                building.enter_context(deepspeed.zero.Init(config_dict_or_path=ds_config))
            model = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=job["attention"])
        mpu = _sequence_parallel(model, job) if shards > 1 else None
        if job["chunk"]:
            chunk_loss(model, job["chunk"])
        if job["checkpoint_every"]:
            checkpoint_activations(model, job["checkpoint_every"])
        if job["adapter"]:
            from peft import LoraConfig, get_peft_model

            lora = LoraConfig(r=job["adapter"]["rank"], target_modules=job["adapter"]["targets"], task_type="CAUSAL_LM")
            model = get_peft_model(model, lora, autocast_adapter_dtype=False)
        model.train()
        storages.enter("initialize")
        engine, _, _, _ = deepspeed.initialize(
            model=model,
            model_parameters=[p for p in model.parameters() if p.requires_grad],
            config=ds_config,
            mpu=mpu,
        )
        if tensor > 1 and torch.distributed.get_backend() == "fake":
            # It compares what no other rank has sent.
            engine.first_dataloader_check.remove()
        elements = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
        for _ in range(job["steps"]):
            for _ in range(ds_config["gradient_accumulation_steps"]):
                torch.manual_seed(0)
                batch = _batch(config.vocab_size, job["micro"], job["sequence"], mpu)
                storages.enter("forward")
                if mpu is None:
                    loss = engine(**batch).loss
                else:
                    logits = engine(input_ids=batch["input_ids"], position_ids=batch["position_ids"]).logits
                    loss = model.loss_function(
                        logits=logits, labels=None, shift_labels=batch["shift_labels"], vocab_size=config.vocab_size
                    )
                    del logits
                storages.enter("backward")
                engine.backward(loss)
                del loss
                storages.enter("step")
                engine.step()
                storages.enter("between steps")
    name = type(engine.optimizer).__name__
    engine.destroy()
    return {"peaks": storages.peaks, "optimizer": name, "elements": elements}


def _batch(vocabulary: int, micro: int, sequence: int, mpu: Any) -> dict[str, Any]:
    """What a rank gets: whole sequences, or, as UlyssesSPDataLoaderAdapter gives them, its part of each."""
    ids = torch.randint(0, vocabulary, (micro, sequence))
    if mpu is None:
        return {"input_ids": ids, "labels": ids.clone()}
    labels = torch.nn.functional.pad(ids, (0, 1), value=-100)[:, 1:]
    whole = {"input_ids": ids, "position_ids": torch.arange(sequence).expand(micro, -1), "shift_labels": labels}
    part = sequence // mpu.get_sequence_parallel_world_size()
    start = part * mpu.get_sequence_parallel_rank()
    return {name: tensor[:, start : start + part].clone() for name, tensor in whole.items()}


def _sequence_parallel(model: Any, job: dict[str, Any]) -> Any:
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    return UlyssesSPAttentionHF.register_with_transformers(
        model, job["attention"], job["sequence_parallel"], job["micro"], seq_length_is_variable=True
    )


def _forget_groups() -> None:
    """The groups of the job before: DeepSpeed keeps them until the process ends."""
    import transformers.integrations.sdpa_attention as sdpa
    from deepspeed.runtime.sequence_parallel import parallel_state_sp
    from deepspeed.utils import groups
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    parallel_state_sp._SEQUENCE_PARALLEL_GROUP = parallel_state_sp._SEQUENCE_DATA_PARALLEL_GROUP = None
    groups.mpu = groups.mesh_device = None
    groups._TENSOR_MODEL_PARALLEL_GROUP = groups._MODEL_PARALLEL_GROUP = groups._DATA_PARALLEL_GROUP = None
    ALL_ATTENTION_FUNCTIONS["sdpa"] = sdpa.sdpa_attention_forward


def _without_neighbours() -> None:
    """DeepSpeed compares what other ranks have sent; torch's fake process group sends nothing."""
    from deepspeed.runtime.zero import partitioned_param_coordinator, utils
    from deepspeed.sequence import cross_entropy

    for module in (utils, partitioned_param_coordinator):
        for name in ("assert_ints_same_as_other_ranks", "assert_lst_len_same_as_other_ranks"):
            if hasattr(module, name):
                setattr(module, name, lambda *_, **__: None)
    cross_entropy._validate_vocab_shard_bounds = lambda own, start, end, group, device: (
        own * torch.distributed.get_world_size(group)
    )


def main() -> None:
    # What a build or DeepSpeed prints must not get among the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    ranks, rank, port = sys.argv[1:4]
    fake = port == "fake"
    os.environ.update(
        DS_ACCELERATOR="cpu",
        RANK=rank,
        WORLD_SIZE=ranks,
        LOCAL_RANK=rank,
        LOCAL_SIZE=ranks,
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500" if fake else port,
    )
    torch.set_num_threads(1)
    import deepspeed
    import deepspeed.comm.torch
    import transformers.models.llama.modeling_llama  # noqa: F401

    # Its buffers in /dev/shm would have to be compiled. The attribute of that name is torch itself.
    sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # type: ignore[attr-defined]
    if fake:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        torch.distributed.init_process_group(backend="fake", store=FakeStore(), rank=int(rank), world_size=int(ranks))
    deepspeed.init_distributed(dist_backend="fake" if fake else "gloo")
    if fake:
        _without_neighbours()
    print(json.dumps({"ready": deepspeed.__version__}), file=answers)
    for line in sys.stdin:
        answer = measure(json.loads(line))
        gc.collect()
        print(json.dumps(answer), file=answers)
    os._exit(0)


if __name__ == "__main__":
    main()
