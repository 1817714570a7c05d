"""The loop that throughput.py compares with: nothing but DeepSpeed and transformers, and the time of every step."""

import json
import os
import time
from pathlib import Path
from pydoc_data.topics import topics

import deepspeed
import torch
from transformers import AutoConfig, AutoModelForCausalLM


def main() -> None:
    folder = os.environ["DSGEN_FOLDER"]
    with open(f"{folder}/settings.json") as file:  # noqa: PTH123
        settings = json.load(file)
    deepspeed.init_distributed()
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(settings["seed"])
    fields = dict(settings["model"]["config"])
    config = AutoConfig.for_model(fields.pop("model_type"), **fields, use_cache=False)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16, attn_implementation="sdpa")
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=f"{folder}/ds_config.json"
    )
    text = torch.tensor(list("".join(topics.values()).encode()))
    length, micro = settings["data"]["sequence_length"], settings["micro_batch"]
    sequences = text[: len(text) // length * length].view(-1, length)
    place = rank * micro
    with open(f"{os.environ['DSGEN_RUN_DIR']}/metrics.jsonl", "w") as file:  # noqa: PTH123
        for step in range(settings["steps"]):
            for _ in range(settings["accumulation"]):
                batch = sequences[torch.arange(place, place + micro) % len(sequences)].to(engine.device)
                place += ranks * micro
                loss = engine(input_ids=batch, labels=batch).loss
                engine.backward(loss)
                engine.step()
            if rank == 0:
                file.write(json.dumps({"step": step + 1, "loss": loss.item(), "time": time.time()}) + "\n")
    torch.distributed.destroy_process_group()
    # DeepSpeed's collectives on CPU leave 69 MB of memory there for each rank.
    for path in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{os.environ['MASTER_PORT']}_*"):
        path.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
