"""torch_npu's real ProcessGroupHCCL over the simulated HCCL: two processes."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from tests.ascend_sim.conftest import NpuRanks

pytestmark = pytest.mark.train

COLLECTIVES = """
dist.init_process_group("hccl")
size = dist.get_world_size()
told = {"backend": dist.get_backend()}
free = torch.npu.mem_get_info()[0]
for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.int64):
    # Longer than a mailbox.
    x = torch.full((3 << 18,), rank + 1, device="npu", dtype=dtype)
    dist.all_reduce(x)
    told[f"all_reduce {dtype}"] = x.cpu().unique().tolist()
told["communicator"] = free - torch.npu.mem_get_info()[0]
x = torch.tensor([float(rank + 1)], device="npu")
dist.all_reduce(x, op=dist.ReduceOp.MAX)
told["max"] = x.tolist()
x = torch.arange(3, device="npu") + 10 * rank
gathered = torch.empty(3 * size, device="npu", dtype=x.dtype)
dist.all_gather_into_tensor(gathered, x)
told["all_gather"] = gathered.tolist()
parts = torch.arange(3.0 * size, device="npu") * (rank + 1)
reduced = torch.empty(3, device="npu")
dist.reduce_scatter_tensor(reduced, parts)
told["reduce_scatter"] = reduced.tolist()
x = torch.full((5,), float(rank), device="npu")
dist.broadcast(x, 1)
told["broadcast"] = x.tolist()
sent = torch.arange(float(size), device="npu") + 10 * rank
received = torch.empty(size, device="npu")
dist.all_to_all_single(received, sent)
told["all_to_all"] = received.tolist()
x = torch.full((1 << 19,), float(rank + 5), device="npu")
if rank == 0:
    dist.send(x, 1)
else:
    dist.recv(x, 0)
told["send"] = x[-1].item()
objects = [None] * size
dist.all_gather_object(objects, {"rank": rank})
told["objects"] = objects
group = dist.new_group([0, 1])
x = torch.ones(3, device="npu")
dist.all_reduce(x, group=group, async_op=True).wait()
told["second group"] = x.tolist()
dist.barrier()
dist.destroy_process_group()
print(json.dumps(told))
"""


@pytest.mark.parametrize("queue", ["0", "1", "2"])
def test_collectives(ranks: NpuRanks, tmp_path: Path, queue: str) -> None:
    """With every way in which torch_npu can submit work."""
    result = ranks.run_code(tmp_path, COLLECTIVES, world_size=2, TASK_QUEUE_ENABLE=queue, HCCL_BUFFSIZE="50").checked()
    for rank in range(2):
        told = json.loads(result.console(rank).splitlines()[-1])
        # Twice HCCL_BUFFSIZE, and what the tensors took.
        assert 0 <= told.pop("communicator") - (100 << 20) < 64 << 20
        assert told == {
            "backend": "hccl",
            **{f"all_reduce torch.{dtype}": [3] for dtype in ("float32", "bfloat16", "float16", "int32", "int64")},
            "max": [2],
            "all_gather": [0, 1, 2, 10, 11, 12],
            "reduce_scatter": [[0, 3, 6], [9, 12, 15]][rank],
            "broadcast": [1] * 5,
            "all_to_all": [[0, 10], [1, 11]][rank],
            "send": 5,
            "objects": [{"rank": 0}, {"rank": 1}],
            "second group": [2] * 3,
        }


SUMS = """
dist.init_process_group("hccl")
for _ in range(5):
    x = torch.ones(10, device="npu")
    dist.all_reduce(x)
    torch.npu.synchronize()
print("summed", flush=True)
os._exit(0)
"""


def test_peer_that_dies(ranks: NpuRanks, tmp_path: Path) -> None:
    """The rank is gone without a word; the other waits for HCCL_EXEC_TIMEOUT and hears of it as from hardware."""
    begun = time.monotonic()
    result = ranks.run_code(
        tmp_path,
        SUMS,
        world_size=2,
        HCCL_EXEC_TIMEOUT="3",
        DSGEN_SIMULATED_NPU_FAULTS="die:rank=1,collective=3",
    )
    assert time.monotonic() - begun < 60
    assert result.codes[1] == -9
    assert result.codes[0] not in (0, -9)
    # Whichever of torch_npu's two threads meets the time-out first speaks; its watchdog ends the process at once.
    said = result.console(0)
    if "HCCL watchdog thread terminated with exception" not in said:
        assert "error code is 507048" in said
        assert "EI0002" in said
        assert "remote rank [1]" in said
    assert "summed" not in said


def test_collective_that_fails(ranks: NpuRanks, tmp_path: Path) -> None:
    """The call itself returns HCCL's code for a time-out."""
    result = ranks.run_code(
        tmp_path,
        SUMS,
        world_size=2,
        HCCL_EXEC_TIMEOUT="3",
        TASK_QUEUE_ENABLE="0",
        DSGEN_SIMULATED_NPU_FAULTS="hccl:rank=0,collective=2,code=9",
    )
    assert result.codes[0] != 0
    assert "function error: HcclAllreduce, error code is 9" in result.console(0)
    # torch_npu's word for the code.
    assert "[Error]: timeout" in result.console(0)


def test_no_memory_for_a_communicator(ranks: NpuRanks, tmp_path: Path) -> None:
    result = ranks.run_code(tmp_path, SUMS, world_size=2, DSGEN_SIMULATED_NPU_HBM_BYTES=str(300 << 20))
    assert result.codes[0] != 0
    assert "error code is 3" in result.console(0)
    assert "twice HCCL_BUFFSIZE" in result.console(0)
