from __future__ import annotations

import pytest

from dsgen.catalog.optimizers import class_names, optimizer_type


def classes(module: object, base: type) -> set[str]:
    """Public classes of a module that are made from `base`."""
    found = {name: getattr(module, name) for name in dir(module) if not name.startswith("_")}
    return {name for name, each in found.items() if isinstance(each, type) and issubclass(each, base)} - {base.__name__}


def test_classes_of_torch() -> None:
    torch = pytest.importorskip("torch")
    optimizers = classes(torch.optim, torch.optim.Optimizer)
    assert {name for name in optimizers if optimizer_type(name) is None} <= set(class_names("torch")) <= optimizers
    schedules = classes(torch.optim.lr_scheduler, torch.optim.lr_scheduler.LRScheduler)
    assert set(class_names("torch_schedules")) == schedules


def test_groups_do_not_meet() -> None:
    own = {name for name in class_names("torch") if optimizer_type(name) is not None}
    assert own == {"Muon"}  # torch has one too, and DeepSpeed's own comes first
    assert all(optimizer_type(name) is None for name in (*class_names("mup"), *class_names("gone")))
