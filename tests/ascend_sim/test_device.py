"""One process on the simulated NPU: torch_npu's view of the devices, their memory and the overridden kernels."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.ascend_sim.conftest import NpuRanks, listed_ops

pytestmark = pytest.mark.train


def printed(ranks: NpuRanks, folder: Path, code: str, **environment: str) -> Any:
    """The JSON value that `code` prints last."""
    result = ranks.run_code(folder, code, **environment).checked()
    return json.loads(result.console(0).splitlines()[-1])


DEVICES = """
properties = torch.npu.get_device_properties(0)
free, total = torch.npu.mem_get_info()
print(json.dumps([torch.npu.device_count(), properties.name, total, free, torch.npu.is_bf16_supported()]))
"""


def test_devices(ranks: NpuRanks, tmp_path: Path) -> None:
    # The total is what torch reports for a 64 GB 910B.
    assert printed(ranks, tmp_path, DEVICES) == [2, "Ascend910B3", 65452113920, 65452113920, True]


def test_other_devices(environment: dict[str, str]) -> None:
    """In a process of its own, since torch_npu asks once. The old family has no bf16, as it knows from the name."""
    other = {
        "DSGEN_SIMULATED_NPU_DEVICES": "16",
        "DSGEN_SIMULATED_NPU_SOC": "Ascend910A",
        "DSGEN_SIMULATED_NPU_HBM_BYTES": "30000000000",
        "ASCEND_RT_VISIBLE_DEVICES": "4,9,12",
    }
    done = subprocess.run(
        [sys.executable, "-c", f"import json, torch, torch_npu\n{DEVICES}"],
        env={**environment, **other},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [3, "Ascend910A", 30000000000, 30000000000, False]


@pytest.mark.parametrize(("mask", "devices"), [("1", 1), ("0,1", 2), ("0,7", 1), ("1,0", 1), ("7", 0), ("", 0)])
def test_mask(environment: dict[str, str], toolkit: Path, mask: str, devices: int) -> None:
    """The list ends before an entry that is missing on the machine or does not ascend."""
    count = "number = ctypes.c_uint32(); library.aclrtGetDeviceCount(ctypes.byref(number)); print(number.value)"
    done = subprocess.run(
        [sys.executable, "-c", f"import ctypes; library = ctypes.CDLL('{toolkit}/lib64/libascendcl.so'); {count}"],
        env={**environment, "ASCEND_RT_VISIBLE_DEVICES": mask},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(done.stdout) == devices


def test_memory(ranks: NpuRanks, tmp_path: Path) -> None:
    """Allocations are torch_npu's own: counted in its statistics, taken from the device, given back."""
    allocated, peak, taken, back = printed(
        ranks,
        tmp_path,
        """
        before = torch.npu.mem_get_info()[0]
        tensor = torch.empty(1 << 28, device="npu", dtype=torch.float32)
        allocated, taken = torch.npu.memory_allocated(), before - torch.npu.mem_get_info()[0]
        del tensor
        torch.npu.empty_cache()
        back = before - torch.npu.mem_get_info()[0]
        print(json.dumps([allocated, torch.npu.max_memory_allocated(), taken, back]))
        """,
    )
    # torch_npu adds 32 bytes and rounds up to 512.
    assert allocated == peak == (1 << 30) + 512
    assert allocated <= taken < allocated + (64 << 20)
    assert back == 0


OUT_OF_MEMORY = """
try:
    torch.empty(3 << 30, dtype=torch.uint8, device="npu")
except torch.OutOfMemoryError as error:
    print(json.dumps(str(error)))
"""


@pytest.mark.parametrize("expandable", [True, False])
def test_out_of_memory(ranks: NpuRanks, tmp_path: Path, expandable: bool) -> None:
    said = printed(
        ranks,
        tmp_path,
        OUT_OF_MEMORY,
        DSGEN_SIMULATED_NPU_HBM_BYTES=str(2 << 30),
        PYTORCH_NPU_ALLOC_CONF=f"expandable_segments:{expandable}",
    )
    assert "NPU out of memory. Tried to allocate 3.00 GiB (NPU 0; 2.00 GiB total capacity; 0 bytes already" in said


def test_device_held_by_another_process(ranks: NpuRanks, tmp_path: Path) -> None:
    said = printed(
        ranks, tmp_path, OUT_OF_MEMORY, DSGEN_SIMULATED_NPU_FAULTS=f"full:device=0,bytes={65452113920 - (1 << 30)}"
    )
    assert "60.96 GiB total capacity; 0 bytes already allocated" in said
    assert "1024.00 MiB free" in said


def test_overridden_kernels(ranks: NpuRanks, tmp_path: Path) -> None:
    """What is registered over torch_npu's kernels is what the list says, and nothing else."""
    overridden = printed(
        ranks,
        tmp_path,
        """
        torch.empty(1, device="npu")
        names = torch._C._dispatch_get_all_op_names()
        ours = [name for name in names if "dsgen simulated NPU" in torch._C._dispatch_dump(name)]
        print(json.dumps(sorted({name.split(".")[0] for name in ours})))
        """,
    )
    assert set(overridden) == listed_ops()
    assert "aten::_to_copy" not in overridden


def test_double_becomes_float(ranks: NpuRanks, tmp_path: Path) -> None:
    """A rule of torch_npu that an override of _to_copy would hide."""
    assert (
        printed(ranks, tmp_path, 'print(json.dumps(str(torch.ones(3, device="npu").double().dtype)))')
        == "torch.float32"
    )


def test_operators_off_the_list_fail_loudly(ranks: NpuRanks, tmp_path: Path) -> None:
    code = """
    value = torch.ones(3, device="npu").erfinv()
    print(json.dumps(value.tolist()))
    """
    refused = ranks.run_code(tmp_path / "refused", code)
    assert refused.codes != [0]
    assert "erfinv" in refused.console(0).lower()
    computed = printed(ranks, tmp_path / "computed", code, DSGEN_SIMULATED_NPU_OPS="all")
    assert computed == [float("inf")] * 3


def test_error_of_a_call(ranks: NpuRanks, tmp_path: Path) -> None:
    """torch_npu reports the code, and its own words for it, and ours."""
    result = ranks.run_code(
        tmp_path,
        """
        x = torch.ones(1000, device="npu")
        torch.npu.synchronize()
        """,
        DSGEN_SIMULATED_NPU_FAULTS="acl:call=aclrtSynchronizeDeviceWithTimeout,code=507015",
    )
    said = result.console(0)
    assert result.codes != [0]
    assert "error code is 507015" in said
    assert "The aicore execution is abnormal" in said
    assert "simulated NPU: call 1 of aclrtSynchronizeDeviceWithTimeout had to fail with 507015" in said


@pytest.mark.parametrize(
    ("variable", "value", "why"),
    [
        ("DSGEN_SIMULATED_NPU_FAULTS", "explode:rank=1", "no such fault"),
        ("DSGEN_SIMULATED_NPU_FAULTS", "die:rank=1", "the field collective is missing"),
        ("DSGEN_SIMULATED_NPU_FAULTS", "die:rank=1,collective=x", "collective must be a whole number"),
        ("DSGEN_SIMULATED_NPU_FAULTS", "die:rank=1,collective=1,size=3", "no field size"),
        ("DSGEN_SIMULATED_NPU_HBM_BYTES", "64GiB", "not a whole number"),
    ],
)
def test_wrong_variables_are_refused(ranks: NpuRanks, tmp_path: Path, variable: str, value: str, why: str) -> None:
    result = ranks.run_code(tmp_path, "", **{variable: value})
    assert result.codes == [2]
    assert why in result.console(0)


MODELS = """
import transformers

small = dict(vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64)
config = transformers.AutoConfig.for_model(os.environ["KIND"], **small)
torch.manual_seed(1)
model = transformers.AutoModelForCausalLM.from_config(config)
ids = torch.randint(0, 99, (2, 24))
numbers = []
for device in ("cpu", "npu"):
    model = model.to(device)
    model.zero_grad()
    loss = model(input_ids=ids.to(device), labels=ids.to(device)).loss
    loss.backward()
    numbers.append([loss.item(), sum(p.grad.abs().sum().item() for p in model.parameters())])
print(json.dumps(numbers))
"""


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3"])
def test_models(ranks: NpuRanks, tmp_path: Path, kind: str) -> None:
    """Loss and gradients of the families that dsgen knows, without an operator off the list."""
    on_cpu, on_npu = printed(ranks, tmp_path, MODELS, KIND=kind)
    assert on_npu == pytest.approx(on_cpu, rel=1e-5)
