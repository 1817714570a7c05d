from __future__ import annotations

import pytest

from dsgen.catalog.environment import carried_by_deepspeed_launcher, load_environment


@pytest.fixture(scope="module")
def variables():
    return load_environment()


def test_all_variables(variables):
    assert len(variables) == 56
    assert all(name == variable.name and variable.meaning and variable.source for name, variable in variables.items())


def test_defaults_are_accepted(variables):
    for variable in variables.values():
        assert variable.default is None or variable.accepts(variable.default)


def test_every_variable_has_one_way_to_check(variables):
    for variable in variables.values():
        assert variable.integer + bool(variable.choices) + (variable.pattern is not None) <= 1


def test_connect_timeout(variables):
    timeout = variables["HCCL_CONNECT_TIMEOUT"]
    assert (timeout.default, timeout.minimum, timeout.maximum, timeout.unit) == ("120", 120, 7200, "s")
    assert timeout.expected == "a whole number from 120 to 7200 (s)"
    assert timeout.source.startswith("hicann/hccl")


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("HCCL_CONNECT_TIMEOUT", ["120", "7200"], ["119", "7201", "600s", "", "1e3", "٣٠٠"]),
        ("HCCL_EXEC_TIMEOUT", ["0", "2147483647"], ["-1", "2147483648"]),
        ("HCCL_BUFFSIZE", ["1", "400"], ["0", "200MB"]),
        ("HCCL_RDMA_TC", ["0", "132", "252"], ["130", "256"]),
        ("HCCL_RDMA_SL", ["0", "7"], ["8"]),
        ("TASK_QUEUE_ENABLE", ["0", "1", "2"], ["3", "true"]),
        ("HCCL_DETERMINISTIC", ["false", "TRUE", "strict"], ["1"]),
        ("HCCL_SOCKET_IFNAME", ["eth", "=eth0", "^docker", "^=eth0,lo", "enp67s0f0"], ["", "eth0 eth1", "eth0,"]),
        ("HCCL_IF_IP", ["10.0.0.1", "fe80::1"], ["node0"]),
        ("ASCEND_RT_VISIBLE_DEVICES", ["0", "0,1,12"], ["0-3", "0, 1", "", "all"]),
        ("ASCEND_VISIBLE_DEVICES", ["0-3", "0,4-7"], ["0:3"]),
        ("CPU_AFFINITY_CONF", ["1", "2,force:1", "1,npu0:0-23"], ["3", "on"]),
        ("PYTORCH_NPU_ALLOC_CONF", ["expandable_segments:True", "max_split_size_mb:64,x:1"], ["expandable_segments"]),
        ("DS_ACCELERATOR", ["npu", "cpu"], ["ascend", "gpu"]),
        ("HCCL_ALGO", ["level0:NA;level1:ring", "anything"], []),
    ],
)
def test_values(variables, name, right, wrong):
    variable = variables[name]
    assert [value for value in right if not variable.accepts(value)] == []
    assert [value for value in wrong if variable.accepts(value)] == []


def test_words(variables):
    assert variables["HCCL_RDMA_TC"].expected == "a multiple of 4 from 0 to 255"
    assert variables["HCCL_BUFFSIZE"].expected == "a whole number of at least 1 (MB)"
    assert variables["HCCL_SOCKET_FAMILY"].expected == "one of AF_INET, AF_INET6"
    assert variables["HCCL_ALGO"].expected == ""


def test_what_each_node_needs_for_itself(variables):
    assert [name for name, variable in variables.items() if variable.per_node] == ["HCCL_IF_IP"]
    # The trap: by its prefix it is carried to nodes where it is wrong.
    assert variables["HCCL_IF_IP"].carried_by_deepspeed
    assert {name for name, variable in variables.items() if variable.required} == {
        "ASCEND_HOME_PATH",
        "ASCEND_OPP_PATH",
    }


def test_relations(variables):
    assert variables["HCCL_EVENT_TIMEOUT"].greater_than == "HCCL_EXEC_TIMEOUT"
    for variable in variables.values():
        assert variable.greater_than is None or variable.greater_than in variables
    assert variables["HCCL_INTRA_ROCE_ENABLE"].only == ("box16",)


@pytest.mark.parametrize(
    ("name", "npu", "cuda", "cpu"),
    [
        ("HCCL_BUFFSIZE", True, False, False),
        ("ASCEND_LAUNCH_BLOCKING", True, False, False),
        ("LD_LIBRARY_PATH", True, False, False),
        ("PATH", True, False, False),
        ("NCCL_SOCKET_IFNAME", False, True, False),
        ("PYTHONPATH", True, True, True),
        ("UCX_TLS", True, True, True),
        # PYTORCH does not begin with PYTHON.
        ("PYTORCH_NPU_ALLOC_CONF", False, False, False),
        ("P2P_HCCL_BUFFSIZE", False, False, False),
        ("TASK_QUEUE_ENABLE", False, False, False),
        ("DS_ACCELERATOR", False, False, False),
    ],
)
def test_what_the_launcher_carries(name, npu, cuda, cpu):
    kinds = ("npu", "cuda", "cpu")
    assert tuple(carried_by_deepspeed_launcher(name, kind) for kind in kinds) == (npu, cuda, cpu)


def test_the_rule_is_deepspeeds():
    runner = pytest.importorskip("deepspeed.launcher.runner")
    from dsgen.catalog import environment

    assert tuple(runner.EXPORT_ENVS) == environment._CARRIED_ALWAYS
    for kind, module in (("npu", "NPU"), ("cuda", "CUDA"), ("cpu", "CPU")):
        accelerator = pytest.importorskip(f"deepspeed.accelerator.{kind}_accelerator")
        export = getattr(accelerator, f"{module}_Accelerator").export_envs
        assert tuple(export(None)) == environment._CARRIED_BY_KIND[kind]
