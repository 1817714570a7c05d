from __future__ import annotations

import inspect

import pytest

from dsgen.catalog.deepspeed_keys import UnknownVersion, known_versions, load_keys
from dsgen.catalog.optimizers import class_names, optimizer_type, optimizer_types, schedule_types, torch_schedules


def test_types_of_the_newest_version():
    assert list(optimizer_types()) == ["AdamW", "Adam", "Lion", "Adagrad", "Muon", "Lamb"]
    assert optimizer_types() == optimizer_types(known_versions()[-1])
    assert {name for name, each in optimizer_types().items() if each.offload} == {"AdamW", "Adam", "Lion", "Adagrad"}
    assert {name for name, each in optimizer_types().items() if not each.zero} == {"Lamb"}
    assert optimizer_type("adamw") == optimizer_types()["AdamW"]
    assert optimizer_type("OneBitAdam") is None


def test_types_of_older_versions():
    assert list(optimizer_types("0.19.6"))[-3:] == ["OneBitAdam", "OneBitLamb", "ZeroOneAdam"]
    assert list(optimizer_types("0.19.7")) == list(optimizer_types())
    one_bit = optimizer_type("onebitadam", "0.19.6")
    assert not one_bit.zero and not one_bit.offload
    assert one_bit.parameters["freeze_step"] == "integer" and one_bit.parameters["cuda_aware"] == "bool"
    assert "deepspeed" not in one_bit.parameters  # the engine passes itself
    assert optimizer_type("Muon", "0.17.5") is None
    # ZeRO did not count Muon among the optimizers it is tested with.
    assert not optimizer_type("Muon", "0.18.4").zero and optimizer_type("Muon", "0.18.5").zero
    assert "fp32_optimizer_states" not in optimizer_type("AdamW", "0.19.5").by_place["device"]
    # Taken out of the params for every class since.
    assert "fp32_optimizer_states" in optimizer_type("AdamW", "0.19.6").by_place["device"]
    with pytest.raises(UnknownVersion):
        optimizer_types("0.13.0")


TYPES = {"number": "float", "integer": "int", "positive": "int", "bool": "bool", "pair": "list", "text": "str"}


@pytest.mark.parametrize("version", known_versions())
def test_every_type_has_a_name_and_every_parameter_a_kind(version):
    keys = load_keys(version)
    assert {name.lower() for name in optimizer_types(version)} == keys.optimizers.keys()
    for section, known in (("optimizer", optimizer_types(version)), ("scheduler", schedule_types(version))):
        for each in known.values():
            for name, kind in each.parameters.items():
                expected = "str" if isinstance(kind, list) else TYPES[kind]
                assert expected in keys.get(f"{section}.params.{name}").types


def test_schedules_of_torch_are_those_of_the_installed_one():
    module = pytest.importorskip("torch.optim.lr_scheduler")
    for name, known in torch_schedules().items():
        arguments = [
            each
            for each in inspect.signature(getattr(module, name).__init__).parameters.values()
            if each.name not in ("self", "optimizer")
        ]
        assert known.names == tuple(each.name for each in arguments), name
        assert known.required == tuple(each.name for each in arguments if each.default is each.empty), name


def test_names_of_types_that_are_gone():
    newest = optimizer_types()
    assert set(class_names("gone")) == {name for v in known_versions() for name in optimizer_types(v)} - newest.keys()
