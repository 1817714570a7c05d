"""The zero_optimization section of a config as `zero` of a recipe."""

from __future__ import annotations

from collections.abc import Mapping

from dsgen.dsconfig.import_notes import Notes
from dsgen.dsconfig.settled import Config
from dsgen.rules.offload import NVME_KEYS
from dsgen.rules.view import truth
from dsgen.rules.zero import BF16_OPTIMIZER_KEYS, STAGE_OF_KEY

_DERIVED: Mapping[str, tuple[int, ...]] = {
    "overlap_comm": (1, 2, 3),
    "reduce_bucket_size": (1, 2, 3),
    "allgather_bucket_size": (1, 2),
    "sub_group_size": (3,),
    "stage3_prefetch_bucket_size": (3,),
    "stage3_param_persistence_threshold": (3,),
    "stage3_max_live_parameters": (3,),
    "stage3_max_reuse_distance": (3,),
    "stage3_gather_16bit_weights_on_model_save": (3,),
}
"""Keys that dsgen derives where they are left out, to something else than DeepSpeed's default -> at which stages."""


def zero_section(section: Config, stage: int, bf16_optimizer: bool, notes: Notes) -> Config:
    zero: Config = {"stage": stage}
    offload, more = _offload(section, stage, notes)
    if offload:
        zero["offload"] = offload
    for name, value in section.items():
        path = f"zero_optimization.{name}"
        why = _without_effect(name, stage, bf16_optimizer)
        if name in ("stage", "offload_optimizer", "offload_param"):
            continue
        if why:
            notes.left_out(path, why)
        elif value == notes.default_of(path) and name not in _DERIVED:
            notes.same(path)
        else:
            zero[name] = value
    for name, stages in _DERIVED.items():
        path = f"zero_optimization.{name}"
        if stage not in stages or name in zero or _without_effect(name, stage, bf16_optimizer):
            notes.derived(path, f"it does nothing at stage {stage}")
        elif notes.auto(path):
            notes.derived(path, "dsgen derives it from the model and the device")
        else:
            usual = stage == 3 if name == "overlap_comm" else notes.default_of(path)
            zero[name] = notes.default(f"zero.{name}", usual)
    return zero | more


def _without_effect(name: str, stage: int, bf16_optimizer: bool) -> str:
    """Why a key of zero_optimization does nothing; empty when it does something."""
    stages = STAGE_OF_KEY.get(name)
    if stages == ():
        return "DeepSpeed does not read it"
    if stage == 0 or (stages is not None and stage not in stages):
        return f"it does nothing at stage {stage}"
    if bf16_optimizer and stages is not None and name not in BF16_OPTIMIZER_KEYS:
        return "DeepSpeed's BF16_Optimizer (stage 1, bf16, fp32 accumulation) does not read it"
    return ""


_OFFLOAD_FIELDS = {
    "offload_optimizer": ("optimizer", ("device", "nvme_path", "pin_memory", "buffer_count", "ratio")),
    "offload_param": (
        "parameters",
        ("device", "nvme_path", "pin_memory", "buffer_count", "buffer_size", "max_in_cpu"),
    ),
}
"""Section of DeepSpeed's -> its name in `zero.offload`, and the keys that the recipe has there."""


def _offload(section: Config, stage: int, notes: Notes) -> tuple[Config, Config]:
    """`zero.offload`, and the keys of the two sections that stand in `zero` under DeepSpeed's names."""
    offload: Config = {}
    more: Config = {}
    for name, (short, fields) in _OFFLOAD_FIELDS.items():
        said, path = section.get(name), f"zero_optimization.{name}"
        notes.derived(f"{path}.device", "accelerate's default: none")
        if not isinstance(said, dict):
            continue
        device = said.get("device", "none")
        if device == "none" or stage == 0 or (short == "parameters" and stage < 3):
            notes.left_out(path, "device none" if device == "none" else f"it does nothing at stage {stage}")
            for canonical in [auto for auto in notes.settled.autos if auto.startswith(f"{path}.")]:
                notes.derived(canonical, "it does nothing")
            continue
        if device == "nvme" and stage < 3:
            device = "cpu"
            notes.left_out(f"{path}.nvme_path", f"at stage {stage} DeepSpeed keeps the states in host memory")
        part: Config = {"device": device}
        for key, value in said.items():
            inner = f"{path}.{key}"
            if key == "device":
                continue
            if device == "cpu" and key in NVME_KEYS:
                notes.left_out(inner, "only nvme reads it")
            elif key == "super_offload" and stage < 3:
                notes.left_out(inner, "only stage 3 has it")
            elif key == "cpuadam_cores_perc" and not truth(said.get("super_offload")):
                notes.left_out(inner, "only super_offload reads it")
            elif key != "pin_memory" and value == notes.default_of(inner):
                notes.same(inner)
            elif key in fields:
                part["path" if key == "nvme_path" else key] = value
            else:
                more.setdefault(name, {})[key] = value
        if device == "nvme" and notes.auto(f"{path}.nvme_path"):
            where = f"zero.offload.{short}.path"
            part["path"] = notes.decided(f"{path}.nvme_path", where, "/local_nvme", "a folder on a fast disk")
        if "pin_memory" not in part:
            pinned = notes.default_of(f"{path}.pin_memory")
            part["pin_memory"] = notes.default(f"zero.offload.{short}.pin_memory", bool(pinned))
        offload[short] = part
    return offload, more
