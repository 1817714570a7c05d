from __future__ import annotations

import dataclasses

import pytest

from dsgen.catalog import devices
from dsgen.catalog.devices import UnknownDevice, device_ids, devices_named, load_device

GIB = 2**30


def test_ids():
    assert device_ids() == (
        "ascend-910b1-64g",
        "ascend-910b2-64g",
        "ascend-910b3-64g",
        "ascend-910b4-32g",
        "ascend-910b4-1-64g",
        "ascend-910c-64g",
        "ascend-910a-32g",
        "ascend-910prob-32g",
        "ascend-910proa-32g",
        "ascend-950pr-128g",
        "ascend-950dt-144g",
        "cuda-v100-16g",
        "cuda-v100-32g",
        "cuda-a100-40g",
        "cuda-a100-80g",
        "cuda-h100-80g",
        "cuda-h200-141g",
        "cuda-rtx3090-24g",
        "cuda-rtx4090-24g",
        "cpu",
    )


def test_910b3():
    device = load_device("ascend-910b3-64g")
    assert (device.kind, device.generation) == ("npu", "A2")
    assert device.memory_bytes == 64 * GIB
    assert device.usable_bytes == 65_452_113_920
    assert device.bf16 and device.fp16
    assert device.peak_flops == {"fp32": None, "fp16": 313e12, "bf16": 294.9e12}
    assert device.memory_bandwidth_bytes_per_second == 1.6 * 2**40
    assert device.link_in_server_bytes_per_second == 196e9
    assert device.link_between_servers_bytes_per_second == 25e9
    assert (device.devices_per_server, device.host_cores, device.host_memory_bytes) == (8, 192, 1024 * GIB)
    assert device.overflow == "inf"
    assert "peak_flops.bf16" in device.uncertain
    assert any("msmodeling" in source for source in device.sources)


def test_910c_is_one_die():
    device = load_device("910C")
    assert device.id == "ascend-910c-64g"
    assert device.devices_per_server == 16
    assert device.usable_bytes == int(61.27 * GIB)
    assert device.host_memory_bytes is None
    assert load_device("a3") is device


def test_h100():
    device = load_device("cuda-h100-80g")
    assert (device.kind, device.generation) == ("cuda", "hopper")
    assert device.peak_flops == {"fp32": 67e12, "fp16": 989e12, "bf16": 989e12}
    assert device.memory_bandwidth_bytes_per_second == 3.35e12
    assert device.link_in_server_bytes_per_second == 450e9


def test_the_old_ascend_family_has_no_bf16_and_saturates():
    old = [device for device in map(load_device, device_ids()) if device.generation == "910"]
    assert [device.id for device in old] == ["ascend-910a-32g", "ascend-910prob-32g", "ascend-910proa-32g"]
    for device in old:
        assert not device.bf16 and device.fp16 and device.overflow == "saturates"
        assert device.peak_flops["bf16"] is None
    assert not load_device("v100-32g").supports("bf16")
    assert load_device("910b4").supports("bf16")


@pytest.mark.parametrize("name", ["Ascend910B", "910B", "910ProB", "Ascend910ProB"])
def test_plain_910b_is_the_old_family(name):
    assert [device.id for device in devices_named(name)] == ["ascend-910prob-32g"]


@pytest.mark.parametrize(
    ("reported", "id"),
    [
        ("Ascend910B3", "ascend-910b3-64g"),
        ("910B4-1", "ascend-910b4-1-64g"),
        ("Ascend910B2C", "ascend-910b2-64g"),
        ("Ascend910_9382", "ascend-910c-64g"),
        ("Ascend910", "ascend-910c-64g"),
        ("Ascend910PremiumA", "ascend-910a-32g"),
        ("NVIDIA H200", "cuda-h200-141g"),
        ("Tesla V100-SXM2-32GB", "cuda-v100-32g"),
    ],
)
def test_names_that_machines_report(reported, id):
    assert [device.id for device in devices_named(reported)] == [id]


def test_unknown_reported_name():
    assert devices_named("Ascend310P3") == ()


def test_aliases_and_names_mean_one_device():
    every = [load_device(id) for id in device_ids()]
    called = [name for device in every for name in (device.id, *device.aliases)]
    assert len(called) == len(set(called))
    assert all(name == name.lower() for name in called)
    reported = [name for device in every for name in device.names]
    assert len(reported) == len(set(reported))
    for device in every:
        for alias in device.aliases:
            assert load_device(alias) is device
    assert load_device("a100-80G").id == "cuda-a100-80g"


def test_unknown_device_suggests_ids():
    with pytest.raises(UnknownDevice, match="unknown device '910b'; did you mean") as caught:
        load_device("910b")
    assert caught.value.suggestions == ("ascend-910b1-64g", "ascend-910b2-64g", "ascend-910b3-64g")
    with pytest.raises(UnknownDevice) as caught:
        load_device("ascend-910b3-46g")
    assert caught.value.suggestions[0] == "ascend-910b3-64g"


def test_cpu_is_the_host_and_has_no_fp16():
    cpu = load_device("cpu")
    assert cpu.kind == "cpu"
    assert cpu.memory_bytes is None and cpu.usable_bytes is None
    assert cpu.bf16 and not cpu.supports("fp16") and cpu.supports("fp32")


@pytest.mark.parametrize("id", device_ids())
def test_figures_make_sense(id):
    device = load_device(id)
    fields = {f.name for f in dataclasses.fields(device)}
    assert {doubt.split(".")[0] for doubt in device.doubts} <= fields
    assert device.sources
    if device.kind == "cpu":
        return
    assert device.memory_bytes is not None and device.usable_bytes is not None
    assert 0.9 < device.usable_bytes / device.memory_bytes < 1
    assert id.endswith(f"-{device.memory_bytes // GIB}g")
    within, between = device.link_in_server_bytes_per_second, device.link_between_servers_bytes_per_second
    assert between is None or (within is not None and within > between)


def test_one_file_is_read_for_an_id(monkeypatch):
    read = []
    monkeypatch.setattr(devices, "_devices", lambda file: read.append(file) or _original(file))
    load_device("cuda-a100-80g")
    assert read == ["cuda"]


_original = devices._devices
