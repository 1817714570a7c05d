"""Known failures, recognised in the words of the libraries that report them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsgen.catalog.datafiles import read_yaml
from dsgen.catalog.failures import recognise

SAID = {
    "npu-oom": "NPU out of memory. Tried to allocate 226.00 MiB (NPU 2; 60.96 GiB total capacity; "
    "58.13 GiB already allocated; 58.13 GiB current active; 113.53 MiB free; 58.42 GiB reserved in total by PyTorch).",
    "npu-held": "NPU out of memory. Tried to allocate 2.00 MiB (NPU 1; 60.96 GiB total capacity; 0 bytes already "
    "allocated; 0 bytes current active; 0 bytes free; 0 bytes reserved in total by PyTorch).",
    "npu-workspace-oom": "NPUWorkspaceAllocator tried to allocate 1.50 GiB(NPU 0; 60.96 GiB total; 0 bytes free)",
    "hccl-buffer-oom": "HCCL function error: hcclCommInitRootInfoConfig(n, &root, rank, c, &x), error code is 3",
    "cuda-oom": "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 23 GiB",
    "npu-pinned-oom": "Malloc pin memory failed, host out of memory, Rried to allocate size: 4096",
    "el0004": "EL0004: [PID: 4] Failed to allocate memory.",
    "ej0001": "EJ0001: [PID: 4] Reason: Maybe the last training process is running.",
    "ei0016": "EI0016: [PID: 3] The TLS configuration of local rank 0 differs from that of remote rank 8.",
    "ei0019": "EI0019: the port is in use",
    "ei0001": "EI0001: Environment variable HCCL_CONNECT_TIMEOUT is invalid",
    "ei0008": "EI0008: HCCL versions differ",
    "ei0011": "EI0011: memory resource of the QP",
    "ei0004": "EI0004: The ranktable is invalid",
    "driver-mismatch": "the possible cause is that driver and firmware packages do not match.",
    "invalid-device": "Set device failed, invalid device, set device=8, valid device range is [0, 8)",
    "no-context": "NPU function error: aclrtGetCurrentContext, error code is 107002",
    "operator-not-simulated": "RuntimeError: aclnnForeachMulScalar or aclnnForeachMulScalarGetWorkspaceSize not in "
    "libopapi.so, or libopapi.so not found.",
    "operator-missing": "RuntimeError: aclnnIncreFlashAttentionV4 or aclnnIncreFlashAttentionV4GetWorkspaceSize not in "
    "libopapi.so, or libopapi.so not found.",
    "op-kernels-missing": "Cannot find bin of op Cast, integral key 0/1/|float16/ND/float/ND/.",
    "op-not-on-npu": "ValueError: This op had not been implemented on NPU backend.",
    "cann-not-sourced": "KeyError: 'ASCEND_HOME_PATH'",
    "two-accelerators": "Two accelerators cannot be used at the same time in PyTorch: npu and cuda",
    "torch-npu-mismatch": "ImportError: libtorch_npu.so: undefined symbol: _ZN3c1011StorageImplC1E",
    "cpu-adam-build": "RuntimeError: Error building extension 'cpu_adam'",
    "hbm-fault": "NPU error, reason=[hbm Multi-bit ECC error]",
    "aicore": "c10_npu::acl::AclrtSynchronizeStreamWithTimeout(stream), error code is 507015",
    "aicpu": "error code is 507018",
    "hccl-timeout": "EI0002: [PID: 5] The wait execution of the Notify register times out.",
    "hccl-connect": "HCCL function error: hcclCommInitRootInfoConfig(numRanks, &r, rank, c, &x), error code is 9",
    "hccl-remote": "HCCL function error: HcclAllReduce(...), error code is 21",
    "hccl-any-timeout": "HCCL function error: HcclAllReduce(...), error code is 9",
    "hccl-operator": "for this inner error, and the current working operator name is HcclAllreduce.",
    "watchdog": "Watchdog caught collective operation timeout: WorkHCCL(SeqNum=4, OpType=ALLGATHER, Timeout(ms)=36)",
}


@pytest.mark.parametrize("code", dict.fromkeys(each["code"] for each in read_yaml("failures.yaml")["failures"]))
def test_every_failure_is_recognised(code: str) -> None:
    simulated = code == "operator-not-simulated"
    known = recognise(f"Traceback (most recent call last):\n  ...\n{SAID[code]}\n", simulated=simulated)
    assert known is not None
    assert known.code == code
    assert known.meaning and known.help
    assert "{" not in known.meaning


def test_figures_are_those_of_the_text() -> None:
    known = recognise(SAID["npu-oom"])
    assert known is not None
    assert known.meaning == (
        "NPU 2 has no room for 226.00 MiB more: 58.13 GiB of 60.96 GiB are allocated, 58.42 GiB reserved, "
        "113.53 MiB free"
    )
    bare = recognise("RuntimeError: NPU out of memory. device id: 0")
    assert bare is not None and bare.meaning == "an NPU has no memory left"


def test_what_other_ranks_caused_is_marked() -> None:
    marked = {each["code"] for each in read_yaml("failures.yaml")["failures"] if each.get("consequence")}
    assert marked == {"hccl-timeout", "hccl-connect", "hccl-remote", "hccl-any-timeout", "hccl-operator", "watchdog"}


def test_ordinary_logs_are_not_failures() -> None:
    for text in (
        "step 3/10  loss 2.5  lr 1e-3",
        "ValueError: bad sample",
        "Setting ds_accelerator to npu (auto detect)",
        "Warning: CAUTION: The operator 'aten::histc' is not currently supported on the NPU backend",
    ):
        assert recognise(text) is None


@given(st.text(max_size=300), st.sampled_from(sorted(SAID)))
def test_no_text_is_too_odd(noise: str, code: str) -> None:
    assert recognise(noise + "\n" + SAID[code] + "\n" + noise) is not None


def test_patterns_are_plain() -> None:
    for each in read_yaml("failures.yaml")["failures"]:
        groups = re.compile(each["pattern"]).groupindex
        assert set(re.findall(r"\{(\w+)\}", each["meaning"])) <= set(groups)
