"""The environment of the job: what its device needs, and what the recipe says."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from dsgen.catalog.devices import Device
from dsgen.catalog.environment import known_variable
from dsgen.recipe.plan import EnvironmentVariable
from dsgen.recipe.resolve.ledger import SAID

SMALL_DEVICE_BYTES = 40 * 2**30


def decide_environment(
    device: Device, name: str, nodes: int, per_node: int, cores: int | None, offline: bool, said: Mapping[str, str]
) -> tuple[EnvironmentVariable, ...]:
    """Every variable of the job, sorted by name; what the recipe says wins over what is derived."""
    derived = {
        "DS_ACCELERATOR": (
            device.kind,
            "DeepSpeed falls back to the CPU without a word when the device's software is not found",
        ),
        "TOKENIZERS_PARALLELISM": (
            "false",
            "tokenizer threads of several ranks on one host only get in each other's way",
        ),
    }
    if offline:
        derived["HF_HUB_OFFLINE"] = ("1", "the recipe names nothing on a hub, so nothing is looked up there")
    if cores is not None:
        threads = max(1, cores // per_node)
        derived["OMP_NUM_THREADS"] = (
            str(threads),
            f"{cores} cores shared by {per_node} rank{'s' if per_node > 1 else ''}: without it each rank starts a "
            "thread per core",
        )
    if device.kind == "npu":
        derived |= _ascend(device, name, nodes, said)
    elif device.kind == "cuda" and "PYTORCH_CUDA_ALLOC_CONF" not in said:  # the older name of the same setting
        derived["PYTORCH_ALLOC_CONF"] = ("expandable_segments:True", "less fragmentation: segments grow in place")
    variables = {
        key: EnvironmentVariable(name=key, value=value, reason=reason) for key, (value, reason) in derived.items()
    }
    for key, value in said.items():
        known = known_variable(key)
        per_node = known is not None and known.per_node
        variables[key] = EnvironmentVariable(name=key, value=value, reason=SAID, per_node=per_node)
    return tuple(variables[key] for key in sorted(variables))


def _ascend(device: Device, name: str, nodes: int, said: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    connect = 1800 if nodes > 1 else 600
    execute = said.get("HCCL_EXEC_TIMEOUT", "1836")
    wait = int(execute) if execute.isdecimal() else 0  # 0 is for ever, which nothing can be longer than
    small = 0 < (device.memory_bytes or 0) < SMALL_DEVICE_BYTES
    buffer = 100 if small else 200
    # Ports 20000-31999: above the usual services, below Linux's ephemeral range (32768), 32 ports for each job.
    base_port = 20000 + zlib.crc32(name.encode()) % 375 * 32
    variables = {
        "HCCL_CONNECT_TIMEOUT": (
            str(connect),
            "ranks that load data or weights start minutes apart; the default of 120 s gives EI0006",
        ),
        "HCCL_EXEC_TIMEOUT": (
            "1836",
            "how long a collective waits for its peers; HCCL's own default on A2, written out because it differs "
            "between device families; a multiple of 68 as the 910 family takes it",
        ),
        "DEEPSPEED_TIMEOUT": (
            str(max(35, -(-wait // 60) + 4)),
            "minutes; must be longer than HCCL_EXEC_TIMEOUT, or torch gives up before HCCL says which peer is missing "
            "(DeepSpeed's default is 10)",
        ),
        "HCCL_BUFFSIZE": (
            str(buffer),
            f"MB; each communicator holds twice that: {2 * buffer} MB of device memory"
            + ("; half the default, the device is small" if small else " (HCCL's own default, written out)"),
        ),
        "HCCL_IF_BASE_PORT": (
            str(base_port),
            "a port range of its own for each job name: two jobs on one host otherwise meet at 60000 (EI0019)",
        ),
        "TASK_QUEUE_ENABLE": ("1", "operators are queued; 2 is faster on the host and needs more device memory"),
        "CPU_AFFINITY_CONF": ("1", "each rank stays on the cores near its NPU"),
    }
    if device.generation != "910":
        variables["HCCL_EVENT_TIMEOUT"] = (str(wait + 32 if wait else 1868), "must be longer than HCCL_EXEC_TIMEOUT")
        if "PYTORCH_ALLOC_CONF" not in said:
            variables["PYTORCH_NPU_ALLOC_CONF"] = (
                "expandable_segments:True",
                "less fragmentation; excludes max_split_size_mb and garbage_collection_threshold",
            )
    return variables
