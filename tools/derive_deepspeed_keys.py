# ruff: noqa: E402 - the accelerator and the logging have to be chosen before DeepSpeed is imported
"""Derive DeepSpeed's configuration keys from the installed DeepSpeed: `dsgen/catalog/data/deepspeed/VERSION.json`.

Three ways, in this order:

1. Sections that DeepSpeed reads with a pydantic model say everything themselves: names, types, defaults, limits,
   aliases, deprecations. An unknown key in them is refused.
2. Everything else is read by hand out of a dict. A dict that notes each look-up is handed to `DeepSpeedConfig`, so that
   the keys, their defaults and the function that reads them come from what DeepSpeed does. An unknown key is ignored.
3. What neither shows stands in the tables of this file: types and choices of keys that are read by hand, keys that are
   read only in a running job, and other spellings.

Run it after DeepSpeed has been updated:  python tools/derive_deepspeed_keys.py
"""

from __future__ import annotations

import argparse
import collections.abc
import dataclasses
import enum
import inspect
import json
import logging
import os
import pathlib
import sys
import types
import typing
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
logging.disable(logging.WARNING)

import deepspeed
import torch
from deepspeed.module_inject.auto_ep_presets.base import AutoEPConfig
from deepspeed.runtime import config as runtime_config
from deepspeed.runtime import constants, lr_schedules
from deepspeed.runtime.config_utils import DeepSpeedConfigModel
from pydantic.fields import FieldInfo

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = pathlib.Path(deepspeed.__file__).resolve().parent

# Sections read with a pydantic model: path -> the attribute of DeepSpeedConfig that holds the parsed model.
MODELS = {
    "bf16": "bfloat16_config",
    "fp16": "float16_config",
    "zero_optimization": "zero_config",
    "comms_logger": "comms_config.comms_logger",
    "tensorboard": "monitor_config.tensorboard",
    "wandb": "monitor_config.wandb",
    "csv_monitor": "monitor_config.csv_monitor",
    "comet": "monitor_config.comet",
    "hybrid_engine": "hybrid_engine",
    "weight_quantization": "weight_quantization_config",
    "compile": "compile_config",
    "timers.throughput": "timers_config",
    "tensor_parallel": "tensor_parallel_config",
}

# The least content that makes DeepSpeed look into every section that it reads by hand.
CONTENT: dict[str, Any] = {
    "train_batch_size": 1,
    "activation_checkpointing": {},
    "aio": {},
    "autotuning": {"model_info": {}},
    "checkpoint": {"writer": {}, "parallel_write": {}},
    "comms_logger": {},
    "data_efficiency": {
        "data_sampling": {
            "curriculum_learning": {"enabled": True, "curriculum_metrics": {}},
            "dynamic_batching": {"enabled": True, "max_tokens": 1},
        },
        "data_routing": {"random_ltd": {"enabled": True}},
    },
    "data_types": {},
    "expert_parallel": {"enabled": False},
    "flops_profiler": {},
    "optimizer": {"type": "Adam", "params": {"max_grad_norm": 0}},
    "pipeline": {},
    "scheduler": {"type": "WarmupLR", "params": {}},
    "timers": {"throughput": {}},
    "torch_autocast": {"dtype": "bf16", "lower_precision_safe_modules": []},
    "weight_quantization": {},
}

# Sections whose keys the user chooses, or that DeepSpeed copies whole.
FREE = (
    "autotuning.arg_mappings",
    "data_efficiency.data_routing.random_ltd",
    "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics",
    "tensor_parallel.partition_config",
    "weight_quantization.post_init_quant",
    "weight_quantization.quantized_initialization",
)

# Handed to a class as keyword arguments: an unknown one is a TypeError when the engine is built.
ARGUMENTS = ("optimizer.params", "scheduler.params")

OTHER_SPELLINGS = {"bf16": ["bfloat16"]}

DTYPES = [value for dtype in runtime_config.DtypeEnum for value in dtype._all_values if isinstance(value, str)]
COMMUNICATION_DTYPES = ["bf16", "fp16", "fp32"]

# What the look-ups do not show. Choices are compared without case where DeepSpeed changes the case first.
BY_HAND: dict[str, dict[str, Any]] = {
    "activation_checkpointing.number_checkpoints": {"type": "int or null"},
    "allgather_size": {"type": "int", "deprecated": True, "replaced_by": ["zero_optimization.allgather_bucket_size"]},
    "autotuning.arg_mappings": {"type": "dict or null"},
    "autotuning.max_train_batch_size": {"type": "int or null"},
    "autotuning.metric": {"choices": ["flops", "latency", "throughput"]},
    "autotuning.metric_path": {"type": "str or null"},
    "autotuning.model_info.hidden_size": {"type": "int or null"},
    "autotuning.model_info.num_layers": {"type": "int or null"},
    "autotuning.model_info.num_params": {"type": "int or null"},
    "autotuning.model_info_path": {"type": "str or null"},
    "autotuning.tuner_type": {"choices": ["gridsearch", "model_based", "random"]},
    "checkpoint.tag_validation": {"choices": list(constants.CHECKPOINT_TAG_VALIDATION_MODES), "any_case": True},
    "checkpoint.writer.data_parallel": {
        "type": "str or null",
        "choices": ["MACHINE", "REPLICA", "SOCKET"],
        "any_case": True,
    },
    "checkpoint.writer.type": {"choices": ["FAST", "MOCK", "PYTHON"], "any_case": True},
    "communication_data_type": {"type": "str or null", "choices": COMMUNICATION_DTYPES, "any_case": True},
    "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics": {"type": "dict"},
    "data_efficiency.data_sampling.dynamic_batching.max_batch_size": {"type": "int or null", "default": None},
    "data_efficiency.data_sampling.dynamic_batching.max_tokens": {"type": "int"},
    "data_parallel_size": {"type": "int", "reader": "__init__.py:initialize"},
    "data_types.buffer_dtype": {"type": "str or null", "choices": DTYPES},
    "data_types.grad_accum_dtype": {"type": "str or null", "choices": DTYPES},
    "data_types.keep_in_fp32_modules": {"type": "str or list"},
    "data_types.param_dtype": {"type": "str or null", "choices": DTYPES},
    "datastates_ckpt": {"type": "bool or dict"},
    "flops_profiler.output_file": {"type": "str or null"},
    "gradient_accumulation_steps": {"type": "int or null", "exclusive_minimum": 0},
    "gradient_clipping": {"minimum": 0},
    "gradient_predivide_factor": {"exclusive_minimum": 0},
    "gradient_allreduce_op": {"choices": sorted(constants.GRADIENT_ALLREDUCE_OP_SUPPORTED), "any_case": True},
    "log_level": {"type": "str or null", "choices": ["critical", "debug", "error", "info", "warning"]},
    "optimizer.legacy_fusion": {"type": "bool", "default": False},
    "optimizer.params.max_grad_norm": {"type": "float", "deprecated": True, "replaced_by": ["gradient_clipping"]},
    "optimizer.type": {"type": "str or null", "default": None},
    "scheduler.type": {"type": "str or null", "default": None},
    "seq_parallel_communication_data_type": {"choices": COMMUNICATION_DTYPES, "any_case": True},
    "sequence_parallel_size": {"type": "int", "reader": "__init__.py:initialize"},
    "steps_per_print": {"type": "int or null", "exclusive_minimum": 0},
    "torch_autocast.dtype": {"type": "str or null", "default": None, "choices": DTYPES},
    "torch_autocast.lower_precision_safe_modules": {"type": "list or null", "default": None},
    "train_batch_size": {"type": "int or null", "exclusive_minimum": 0},
    "train_micro_batch_size_per_gpu": {"type": "int or null", "exclusive_minimum": 0},
    "vocabulary_size": {"type": "int or null"},
    "zero_optimization": {"type": "bool or dict"},
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = ROOT / "dsgen" / "catalog" / "data" / "deepspeed" / f"{deepspeed.__version__}.json"
    parser.add_argument("--output", type=pathlib.Path, default=default, help="file to write (default: %(default)s)")
    options = parser.parse_args(argv)
    document = derive()
    options.output.write_text(as_text(document), encoding="utf-8")
    print(f"{len(document['keys'])} keys of DeepSpeed {document['deepspeed']}: {options.output}")
    return 0


def derive() -> dict[str, Any]:
    """The whole document."""
    keys, sections = derived_by_looking_on()
    for path, attribute in MODELS.items():
        model_keys, model_sections = keys_of_model(path, type(parsed_model(attribute)))
        keys.update(model_keys)
        sections.update(model_sections)
    for path, extra in (*pipeline_keys().items(), *expert_parallel_keys().items(), *params_keys().items()):
        keys[path] = {**keys.get(path, {}), **extra}
    for path, extra in BY_HAND.items():
        keys[path] = {**keys.get(path, {}), **extra}
    for path, spellings in OTHER_SPELLINGS.items():
        keys[path]["aliases"] = spellings
        for spelling in spellings:
            del keys[spelling]
    sections.update(dict.fromkeys(FREE, "free") | dict.fromkeys(ARGUMENTS, "refused"))
    for path in sections:
        if path:
            keys.setdefault(path, {})
            keys[path].setdefault("type", "dict")
            keys[path].pop("default", None)
    for path, entry in keys.items():
        if "type" not in entry:
            raise SystemExit(f"{path}: the look-up does not show its type; add it to BY_HAND")
    return {
        "deepspeed": deepspeed.__version__,
        "keys": {path: tidy(entry) for path, entry in keys.items()},
        "optimizers": optimizers(),
        "removed": removed(),
        "schedulers": schedulers(),
        "sections": sections,
        # Some arguments of optimizers are torch's.
        "torch": ".".join(torch.__version__.split(".")[:2]),
    }


def as_text(document: dict[str, Any]) -> str:
    """JSON with one key of DeepSpeed a line, sorted."""
    parts = []
    for name, value in sorted(document.items()):
        if isinstance(value, dict):
            lines = ",\n".join(
                f"  {json.dumps(key)}: {json.dumps(value[key], sort_keys=True)}" for key in sorted(value)
            )
            parts.append(f" {json.dumps(name)}: {{\n{lines}\n }}")
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def tidy(entry: dict[str, Any]) -> dict[str, Any]:
    """Without what is empty; the default stays, whatever it is."""
    return {name: value for name, value in entry.items() if name == "default" or not is_empty(value)}


def is_empty(value: Any) -> bool:
    return value is None or value is False or value == []


# ---- 1. pydantic models


def parsed_model(attribute: str) -> DeepSpeedConfigModel:
    value: Any = runtime_config.DeepSpeedConfig(CONTENT | {"comms_logger": {}, "weight_quantization": {}})
    for name in attribute.split("."):
        value = getattr(value, name)
    if not isinstance(value, DeepSpeedConfigModel):
        raise SystemExit(f"{attribute} is no pydantic model any more: mend MODELS")
    return value


def keys_of_model(section: str, model: type[DeepSpeedConfigModel]) -> tuple[dict[str, Any], dict[str, str]]:
    """Keys and sections of a model, nested models included."""
    keys: dict[str, Any] = {}
    sections = {section: "refused" if model.model_config.get("extra") == "forbid" else "ignored"}
    reader = f"{relative(inspect.getfile(model))}:{model.__name__}"
    for name, field in model.model_fields.items():
        path = f"{section}.{field.alias or name}"
        entry, nested = described(field.annotation)
        entry["reader"] = reader
        entry["aliases"] = [name] if field.alias not in (None, name) else []
        if nested is not None:
            nested_keys, nested_sections = keys_of_model(path, nested)
            keys.update(nested_keys)
            sections.update(nested_sections)
        elif not field.is_required():
            entry["default"] = plain(field.get_default(call_default_factory=True))
        entry.update(limits(field))
        entry.update(deprecation(section, field, model))
        keys[path] = entry
    return keys, sections


def limits(field: FieldInfo) -> dict[str, Any]:
    names = {"ge": "minimum", "gt": "exclusive_minimum", "le": "maximum", "lt": "exclusive_maximum"}
    found: dict[str, Any] = {}
    for item in field.metadata:
        for short, name in names.items():
            if getattr(item, short, None) is not None:
                found[name] = plain(getattr(item, short))
    return found


def deprecation(section: str, field: FieldInfo, model: type[DeepSpeedConfigModel]) -> dict[str, Any]:
    extra = field.json_schema_extra
    if not isinstance(extra, dict) or not extra.get("deprecated"):
        return {}
    names = [name for name in str(extra.get("new_param", "")).split(" or ") if name]
    canonical = {name: other.alias or name for name, other in model.model_fields.items()}
    return {"deprecated": True, "replaced_by": [f"{section}.{canonical.get(name, name)}" for name in names]}


def described(annotation: Any) -> tuple[dict[str, Any], type[DeepSpeedConfigModel] | None]:
    """Type, choices and nested model of an annotation."""
    entry: dict[str, Any] = {"choices": []}
    nested: type[DeepSpeedConfigModel] | None = None
    names: list[str] = []
    for option in alternatives(annotation):
        origin = typing.get_origin(option) or option
        if option is type(None):
            names.append("null")
        elif origin is typing.Literal:
            entry["choices"] += list(typing.get_args(option))
            names += [type(choice).__name__ for choice in typing.get_args(option)]
        elif isinstance(origin, type) and issubclass(origin, DeepSpeedConfigModel):
            nested = origin
            names.append("dict")
        elif isinstance(origin, type) and issubclass(origin, enum.Enum):
            entry["choices"] += [member.value for member in origin]
            names += [type(member.value).__name__ for member in origin]
        else:
            names.append(json_type(origin))
            # A list of literals: the choices are those of its items.
            for inner in typing.get_args(option) if origin is list else ():
                if typing.get_origin(inner) is typing.Literal:
                    entry["choices"] += list(typing.get_args(inner))
    entry["choices"] = sorted(entry["choices"], key=lambda choice: (str(type(choice)), choice))
    entry["type"] = joined(names)
    return entry, nested


def alternatives(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def json_type(origin: Any) -> str:
    for kind in (bool, int, float, str, list, dict):
        if origin is kind:
            return kind.__name__
    if origin is pathlib.Path:
        return "str"
    if origin is tuple:
        return "list"
    # torch.dtype and live objects: JSON cannot carry them.
    return "python"


def joined(names: list[str]) -> str:
    unique = list(dict.fromkeys(names))
    return " or ".join([name for name in unique if name != "null"] + ["null"] * ("null" in unique))


def plain(value: Any) -> Any:
    """A default as JSON has it."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (torch.dtype, pathlib.Path)):
        return str(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


def relative(file: str) -> str:
    return pathlib.Path(file).resolve().relative_to(PACKAGE).as_posix()


# ---- 2. looking on while DeepSpeed reads


@dataclasses.dataclass
class LookUp:
    """One look-up of a key."""

    path: str
    reader: str
    default: Any
    has_default: bool


class Recorder(dict):  # type: ignore[type-arg]
    """A dict that notes which keys are looked up, by whom and with which default."""

    def __init__(self, content: dict[str, Any], path: str, log: list[LookUp]) -> None:
        below = {
            key: Recorder(value, f"{path}.{key}" if path else key, log) if isinstance(value, dict) else value
            for key, value in content.items()
        }
        super().__init__(below)
        self.path = path
        self.log = log

    def note(self, key: Any, *default: Any) -> None:
        reader = who_asks()
        if reader.endswith(":_reject_removed_config_keys"):
            return
        path = f"{self.path}.{key}" if self.path else str(key)
        self.log.append(LookUp(path, reader, default[0] if default else None, bool(default)))

    def get(self, key: Any, default: Any = None) -> Any:
        self.note(key, default)
        return super().get(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        self.note(key, *default)
        return super().pop(key, *default)

    def __getitem__(self, key: Any) -> Any:
        self.note(key)
        return super().__getitem__(key)

    def __contains__(self, key: Any) -> bool:
        self.note(key)
        return super().__contains__(key)

    def keys(self) -> Any:
        return RecordedKeys(self)

    def __copy__(self) -> Recorder:
        return Recorder(dict(self.items()), self.path, self.log)


class RecordedKeys(collections.abc.KeysView[Any]):
    """`recorder.keys()`: `in` is a look-up too."""

    def __contains__(self, key: object) -> bool:
        return key in self._mapping


def who_asks() -> str:
    """file:function of the nearest caller that knows the key; not a function that is told it, nor a comprehension."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        inside = pathlib.Path(code.co_filename).resolve().is_relative_to(PACKAGE)
        if inside and not code.co_filename.endswith("/config_utils.py") and not code.co_name.startswith("<"):
            return f"{relative(code.co_filename)}:{code.co_name}"
        frame = frame.f_back
    return ""


def derived_by_looking_on() -> tuple[dict[str, Any], dict[str, str]]:
    log: list[LookUp] = []
    parsed = runtime_config.DeepSpeedConfig(Recorder(CONTENT, "", log))
    check_no_model_is_missed(parsed)
    # The form of DeepSpeed before 0.3: zero_optimization as a switch.
    runtime_config.DeepSpeedConfig(Recorder({"train_batch_size": 1, "zero_optimization": True}, "", log))
    keys: dict[str, Any] = {}
    for look in log:
        known = keys.get(look.path)
        if known is None or ("default" not in known and look.has_default):
            keys[look.path] = {"reader": look.reader, **by_default(look)}
    return keys, {"": "ignored", **dict.fromkeys(nested_paths(CONTENT), "ignored")}


def by_default(look: LookUp) -> dict[str, Any]:
    if not look.has_default:
        return {}
    default = plain(look.default)
    return {"default": default, **({} if default is None else {"type": type(default).__name__})}


def nested_paths(content: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in content.items():
        if isinstance(value, dict):
            found += [prefix + key, *nested_paths(value, f"{prefix}{key}.")]
    return found


def check_no_model_is_missed(parsed: Any) -> None:
    """Whether a pydantic model has come to DeepSpeed that MODELS does not name."""
    known = {type(parsed_model(attribute)) for attribute in MODELS.values()}
    for name, value in vars(parsed).items():
        if isinstance(value, DeepSpeedConfigModel) and type(value) not in known and name != "monitor_config":
            raise SystemExit(f"DeepSpeedConfig.{name} is a pydantic model that MODELS does not name")


# ---- 3. what neither way shows


def pipeline_keys() -> dict[str, Any]:
    """DeepSpeed copies whatever stands in `pipeline` over these defaults."""
    reader = "runtime/config.py:get_pipeline_config"
    defaults = runtime_config.get_pipeline_config({})
    kinds = {"stages": "int or str"}
    return {
        f"pipeline.{name}": {"type": kinds.get(name, type(value).__name__), "default": value, "reader": reader}
        for name, value in defaults.items()
    }


def expert_parallel_keys() -> dict[str, Any]:
    """Types and choices from the dataclass that the section is read into."""
    hints = typing.get_type_hints(AutoEPConfig)
    found = {}
    for field in dataclasses.fields(AutoEPConfig):
        if field.init:
            entry, _ = described(hints[field.name])
            found[f"expert_parallel.{field.name}"] = entry | {
                "reader": "module_inject/auto_ep_config.py:parse_autoep_config"
            }
    # Given as objects that mean "not set"; a config gives a name, or null.
    found["expert_parallel.expert_w3"]["type"] = "str or null"
    found["expert_parallel.load_balance_coeff"]["type"] = "float or null"
    return found


def arguments(*callables: Any) -> dict[str, inspect.Parameter]:
    """The keyword arguments of some classes that a config may give.

    Not the model's parameters and the optimizer, nor max_grad_norm: some classes take it, and the engine refuses it.
    """
    not_for_a_config = ("params", "model_params", "optimizer", "last_batch_iteration", "max_grad_norm")
    found: dict[str, inspect.Parameter] = {}
    for callable_ in callables:
        for name, parameter in inspect.signature(callable_).parameters.items():
            if name not in not_for_a_config:
                found.setdefault(name, parameter)
    return found


def optimizers() -> dict[str, Any]:
    """Optimizer type in lower case -> the params that it takes, and what becomes of others.

    Which class stands behind a type depends on where the states are (`device`, or `host` with offload) and on
    `torch_adam` (`torch`). Any other type is a class of torch.optim.
    """
    from deepspeed.ops.adagrad import DeepSpeedCPUAdagrad
    from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
    from deepspeed.ops.lamb import FusedLamb
    from deepspeed.ops.lion import DeepSpeedCPULion, FusedLion

    engine = deepspeed.DeepSpeedEngine
    # The engine takes these out before the class sees them.
    switches = {"torch_adam", "adam_w_mode"}
    adam = {
        "device": set(arguments(FusedAdam)) | switches,
        # DeepSpeed passes adamw_mode itself; a second one is a TypeError.
        "host": (set(arguments(DeepSpeedCPUAdam)) | switches) - {"adamw_mode"},
    }
    muon = {*engine._MUON_HALF_KEYS, *engine._ADAM_HALF_KEYS, "muon_lr", "adam_lr"}
    muon |= {*switches, "fp32_optimizer_states", "per_head_muon"}
    taken = {
        "adagrad": {"device": arguments(torch.optim.Adagrad), "host": arguments(DeepSpeedCPUAdagrad)},
        "adam": adam | {"torch": set(arguments(torch.optim.Adam)) | switches},
        "adamw": adam | {"torch": set(arguments(torch.optim.AdamW)) | switches},
        "lamb": {"device": arguments(FusedLamb)},
        "lion": {"device": arguments(FusedLion), "host": arguments(DeepSpeedCPULion)},
        "muon": {"device": muon},
    }
    # For Muon the engine picks what it knows out of the params; the others get all of them as arguments.
    return {
        name: {
            "params": {place: sorted(params) for place, params in places.items()},
            "unknown_params": "ignored" if name == "muon" else "refused",
        }
        for name, places in taken.items()
    }


def schedulers() -> dict[str, Any]:
    """Scheduler type -> its params and the ones that must be given."""
    found = {}
    for name in lr_schedules.VALID_LR_SCHEDULES:
        parameters = arguments(getattr(lr_schedules, name))
        required = [key for key, value in parameters.items() if value.default is inspect.Parameter.empty]
        found[name] = {"params": sorted(parameters), "required": sorted(required)}
    return found


def params_keys() -> dict[str, Any]:
    """`optimizer.params` and `scheduler.params`: the union over all types. Which type takes what: see the tables."""
    readers = {
        "optimizer.params": "runtime/engine.py:_configure_basic_optimizer",
        "scheduler.params": "runtime/engine.py:_scheduler_from_config",
    }
    names = {
        f"optimizer.params.{name}"
        for entry in optimizers().values()
        for params in entry["params"].values()
        for name in params
    }
    names |= {f"scheduler.params.{name}" for entry in schedulers().values() for name in entry["params"]}
    found = {}
    for path in names:
        section, name = path.rsplit(".", 1)
        found[path] = {"type": kind_of_param(name), "reader": readers[section]}
    return found


def kind_of_param(name: str) -> str:
    kinds = {
        "betas": "list",
        "ns_method": "str",
        "warmup_type": "str",
        "cycle_second_step_size": "int or null",
        "cycle_second_stair_count": "int or null",
        "warmup_max_lr": "float or list or null",
        "warmup_min_lr": "float or list",
        "lr_range_test_min_lr": "float or list",
        "foreach": "bool or null",
        "fused": "bool or null",
    }
    if name in kinds:
        return kinds[name]
    if name.endswith(("_steps", "_step_size", "_count")):
        return "int"
    if name in SWITCHES:
        return "bool"
    return "float"


SWITCHES = {
    "adam_w_mode",
    "amsgrad",
    "bias_correction",
    "capturable",
    "cycle_momentum",
    "differentiable",
    "eps_inside_sqrt",
    "fp32_optimizer_states",
    "lr_range_test_staircase",
    "maximize",
    "per_head_muon",
    "set_grad_none",
    "torch_adam",
    "decoupled_weight_decay",
}


def removed() -> list[str]:
    """Keys whose presence alone DeepSpeed refuses."""
    zero = (f"zero_optimization.{key}" for key in runtime_config._REMOVED_ZERO_CONFIG_KEYS)
    return sorted({*runtime_config._REMOVED_TOP_LEVEL_CONFIG_KEYS, *zero})


if __name__ == "__main__":
    raise SystemExit(main())
