# ruff: noqa: E402 - the accelerator and the logging have to be chosen before DeepSpeed is imported
"""Derive the configuration keys of the DeepSpeed that is imported: `dsgen/catalog/data/deepspeed/VERSION.json`.

Three ways, in this order:

1. Sections that DeepSpeed reads with a pydantic model say everything themselves: names, types, defaults, limits,
   aliases, deprecations. An unknown key in them is refused.
2. Everything else is read by hand out of a dict. A dict that notes each look-up is handed to `DeepSpeedConfig`, so that
   the keys, their defaults and the function that reads them come from what DeepSpeed does. An unknown key is ignored.
   In the same way the engine chooses an optimizer out of such a dict, up to the moment when it would build it.
3. What neither shows stands in the tables of this file: types and choices of keys that are read by hand, keys that are
   read only in a running job, and other spellings. They hold for every version; what a version does not look up is
   left out.

Works with every DeepSpeed from 0.14.0 on. Run it after DeepSpeed has been updated:

    python tools/derive_deepspeed_keys.py

`tools/derive_deepspeed_versions.py` runs it for versions that are not installed.
"""

from __future__ import annotations

import argparse
import collections.abc
import contextlib
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
from collections.abc import Iterator
from typing import Any

os.environ.setdefault("DS_ACCELERATOR", "cpu")
logging.disable(logging.WARNING)

import numpy
import torch
import torch.distributed.elastic.agent.server.api as elastic_api

# What old DeepSpeeds import of libraries that have dropped it since, and do not use to read a config: up to 0.14.3 the
# elastic agent and the autotuner; 0.14.0 takes the CPU only where Intel's extensions can be imported.
vars(elastic_api).setdefault("_get_socket_with_port", None)
vars(elastic_api).setdefault("log", None)
vars(numpy).setdefault("BUFSIZE", 8192)
INTEL = ("intel_extension_for_pytorch", "oneccl_bindings_for_pytorch")
sys.modules.update((name, types.ModuleType(name)) for name in INTEL)

import deepspeed
import pydantic
import pydantic.v1
from deepspeed.runtime import config as runtime_config
from deepspeed.runtime import engine, lr_schedules
from deepspeed.runtime.zero import utils as zero_utils

PYDANTIC = (pydantic.BaseModel, pydantic.v1.BaseModel)
ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = pathlib.Path(deepspeed.__file__).resolve().parent
# Source packages end it with a blank.
VERSION = deepspeed.__version__.strip()

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
    "amp": {"enabled": False},
    "autotuning": {"model_info": {}},
    "bf16": {"enabled": False},
    "checkpoint": {"writer": {}, "parallel_write": {}},
    "comms_logger": {},
    "curriculum_learning": {"enabled": False},
    "data_efficiency": {
        "data_sampling": {
            "curriculum_learning": {"enabled": True, "curriculum_metrics": {}},
            "dynamic_batching": {"enabled": True, "max_tokens": 1},
        },
        "data_routing": {"random_ltd": {"enabled": True}},
    },
    "data_types": {},
    "elasticity": {},
    "expert_parallel": {"enabled": False},
    "flops_profiler": {},
    "fp16": {"enabled": True, "initial_scale_power": 16},
    "nebula": {},
    "optimizer": {"type": "Adam", "params": {"max_grad_norm": 0}},
    "pipeline": {},
    "progressive_layer_drop": {"enabled": False},
    "scheduler": {"type": "WarmupLR", "params": {}},
    "timers": {"throughput": {}},
    "torch_autocast": {"dtype": "bf16", "lower_precision_safe_modules": []},
    "weight_quantization": {},
}

# What has to stand there for the rest: sections that DeepSpeed reads in one of several ways, or that end its reading.
FURTHER_CONTENT: tuple[dict[str, Any], ...] = (
    # The form of DeepSpeed before 0.3: zero_optimization as a switch.
    {"train_batch_size": 1, "zero_optimization": True},
    *(
        {"train_batch_size": 1, "sparse_attention": {"mode": mode}}
        for mode in ("fixed", "dense", "variable", "bigbird", "bslongformer")
    ),
    {"elasticity": {"enabled": True, "max_train_batch_size": 4, "micro_batch_sizes": [1]}},
    {
        "train_batch_size": 1,
        "compression_training": {
            "weight_quantization": {
                "shared_parameters": {"enabled": True, "fp16_mixed_quantize": {}},
                "different_groups": {},
            },
            "activation_quantization": {"shared_parameters": {}, "different_groups": {}},
            "sparse_pruning": {"shared_parameters": {"method": "snip_momentum"}, "different_groups": {}},
            "row_pruning": {"shared_parameters": {}, "different_groups": {}},
            "head_pruning": {"shared_parameters": {"enabled": True, "num_heads": 1}, "different_groups": {}},
            "channel_pruning": {"shared_parameters": {}, "different_groups": {}},
            "layer_reduction": {"enabled": True},
        },
    },
    # Where DeepSpeed looks, by mistake, whether weights are quantized (compression/config.py, get_quantize_enabled).
    {
        "train_batch_size": 1,
        "compression_training": {"shared_parameters": {"enabled": True, "fp16_mixed_quantize": {}}},
        "quantize_training": {"eigenvalue": {}},
    },
)

# Sections whose keys the user chooses, or that DeepSpeed copies whole.
FREE = (
    "amp",
    "autotuning.arg_mappings",
    *(
        f"compression_training.{technique}.different_groups"
        for technique in (
            "activation_quantization",
            "channel_pruning",
            "head_pruning",
            "row_pruning",
            "sparse_pruning",
            "weight_quantization",
        )
    ),
    "compression_training.layer_reduction",
    "curriculum_learning",
    "data_efficiency.data_routing.random_ltd",
    "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics",
    "tensor_parallel.partition_config",
    "weight_quantization.post_init_quant",
    "weight_quantization.quantized_initialization",
)

# Keys of sections that are copied, and who reads them in a running job.
READ_LATER = {
    "data_efficiency.data_sampling.curriculum_learning.data_cluster_path": (
        "runtime/data_pipeline/data_sampling/data_sampler.py:__init__"
    ),
    "data_efficiency.data_sampling.dynamic_batching.metrics_path": (
        "runtime/data_pipeline/data_sampling/variable_batch_size_and_lr.py:"
        "get_dataloader_and_lr_scheduler_for_variable_batch_size_deepspeed"
    ),
    "progressive_layer_drop.gamma": "runtime/engine.py:pld_gamma",
    "progressive_layer_drop.theta": "runtime/engine.py:pld_theta",
}

# Handed to a class as keyword arguments: an unknown one is a TypeError when the engine is built.
ARGUMENTS = ("optimizer.params", "scheduler.params")

OTHER_SPELLINGS = {"bf16": ["bfloat16"]}

DTYPES = [value for dtype in runtime_config.DtypeEnum for value in dtype._all_values if isinstance(value, str)]
# "bfp16" is how 0.14.0 wants it.
COMMUNICATION_DTYPES = ["bf16", "bfp16", "fp16", "fp32"]

# What the look-ups do not show. Choices are compared without case where DeepSpeed changes the case first; those that
# the version's own reader refuses are left out.
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
    "checkpoint.tag_validation": {"choices": ["FAIL", "IGNORE", "WARN"], "any_case": True},
    "checkpoint.writer.data_parallel": {
        "type": "str or null",
        "choices": ["MACHINE", "REPLICA", "SOCKET"],
        "any_case": True,
    },
    "checkpoint.writer.type": {"choices": ["FAST", "MOCK", "PYTHON"], "any_case": True},
    "communication_data_type": {"type": "str or null", "choices": COMMUNICATION_DTYPES, "any_case": True},
    "compression_training.head_pruning.shared_parameters.num_heads": {"type": "int"},
    "data_efficiency.data_sampling.curriculum_learning.curriculum_metrics": {"type": "dict"},
    "data_efficiency.data_sampling.curriculum_learning.data_cluster_path": {"type": "str"},
    "data_efficiency.data_sampling.dynamic_batching.max_batch_size": {"type": "int", "default": None},
    "data_efficiency.data_sampling.dynamic_batching.max_tokens": {"type": "int"},
    "data_efficiency.data_sampling.dynamic_batching.metrics_path": {"type": "str"},
    "data_parallel_size": {"type": "int"},
    "data_types.buffer_dtype": {"type": "str or null", "choices": DTYPES},
    "data_types.grad_accum_dtype": {"type": "str or null", "choices": DTYPES},
    "data_types.keep_in_fp32_modules": {"type": "list"},
    "data_types.param_dtype": {"type": "str or null", "choices": DTYPES},
    "datastates_ckpt": {"type": "bool or dict"},
    "elasticity.max_train_batch_size": {"type": "int"},
    "elasticity.micro_batch_sizes": {"type": "list"},
    "flops_profiler.output_file": {"type": "str or null"},
    "fp16.loss_scale": {"type": "float"},
    "gradient_accumulation_steps": {"type": "int or null", "exclusive_minimum": 0},
    "gradient_clipping": {"minimum": 0},
    "gradient_predivide_factor": {"exclusive_minimum": 0},
    "gradient_allreduce_op": {"choices": ["mean", "sum"], "any_case": True},
    "log_level": {
        "type": "str or null",
        "choices": ["critical", "debug", "error", "info", "warning"],
        "any_case": True,
    },
    "nebula.nebula_load_path": {"type": "str or null"},
    "nebula.persistent_storage_path": {"type": "str or null"},
    "optimizer.legacy_fusion": {"type": "bool", "default": False},
    "optimizer.params.max_grad_norm": {"type": "float", "deprecated": True, "replaced_by": ["gradient_clipping"]},
    "optimizer.type": {"type": "str or null", "default": None},
    "progressive_layer_drop.gamma": {"type": "float"},
    "progressive_layer_drop.theta": {"type": "float"},
    "scheduler.type": {"type": "str or null", "default": None},
    "seq_parallel_comm_data_type": {"choices": COMMUNICATION_DTYPES, "any_case": True},
    "seq_parallel_communication_data_type": {"choices": COMMUNICATION_DTYPES, "any_case": True},
    "sequence_parallel_size": {"type": "int"},
    "sparse_attention.global_block_end_indices": {"type": "list or null"},
    "sparse_attention.mode": {
        "type": "str",
        "default": "fixed",
        "choices": ["bigbird", "bslongformer", "dense", "fixed", "variable"],
    },
    "steps_per_print": {"type": "int or null", "exclusive_minimum": 0},
    "torch_autocast.dtype": {"type": "str", "default": None, "choices": DTYPES},
    "torch_autocast.lower_precision_safe_modules": {"type": "list", "default": None},
    "train_batch_size": {"type": "int or null", "exclusive_minimum": 0},
    "train_micro_batch_size_per_gpu": {"type": "int or null", "exclusive_minimum": 0},
    "vocabulary_size": {"type": "int or null"},
    "zero_optimization": {"type": "bool or dict"},
    "zero_optimization.leaf_module": {"type": "dict or null"},
    "zero_optimization.leaf_module.classes": {"type": "str or list"},
    "zero_optimization.leaf_module.name_suffixes": {"type": "str or list"},
    "zero_optimization.leaf_module.names": {"type": "str or list"},
    "zero_optimization.zenflow.select_strategy": {"choices": ["auto", "epoch", "step"]},
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = ROOT / "dsgen" / "catalog" / "data" / "deepspeed" / f"{VERSION}.json"
    parser.add_argument("--output", type=pathlib.Path, default=default, help="file to write (default: %(default)s)")
    options = parser.parse_args(argv)
    document = derive()
    options.output.write_text(as_text(document), encoding="utf-8")
    print(f"{len(document['keys'])} keys of DeepSpeed {document['deepspeed']}: {options.output}")
    return 0


def derive() -> dict[str, Any]:
    """The whole document."""
    keys, sections = derived_by_looking_on()
    for path, model in models().items():
        model_keys, model_sections = keys_of_model(path, model)
        keys.update(model_keys)
        sections.update(model_sections)
    for extra in (pipeline_keys(), expert_parallel_keys(), params_keys(), keys_of_initialize(), read_later(keys)):
        for path, entry in extra.items():
            keys[path] = {**keys.get(path, {}), **entry}
    for path, spellings in OTHER_SPELLINGS.items():
        keys[path]["aliases"] = spellings
        for spelling in spellings:
            del keys[spelling]
    for path, entry in BY_HAND.items():
        if path in keys:
            keys[path].update(entry)
            if keys[path].get("default") is not None:
                # steps_per_print was 10 before 0.15.2, and could not be null.
                keys[path]["type"] = keys[path]["type"].removesuffix(" or null")
            if "choices" in entry:
                keys[path]["choices"] = choices_taken(path, entry["choices"])
    sections.update({path: "free" for path in FREE if path in keys} | dict.fromkeys(ARGUMENTS, "refused"))
    for path in sections:
        if path:
            keys[path].setdefault("type", "dict")
            keys[path].pop("default", None)
    untyped = [path for path, entry in keys.items() if "type" not in entry]
    if untyped:
        raise SystemExit(f"the look-ups do not show the types of {', '.join(untyped)}: add them to BY_HAND")
    return {
        "deepspeed": VERSION,
        "keys": {path: tidy(entry) for path, entry in keys.items()},
        "optimizers": optimizers(),
        "readers": readers(keys),
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
    """Without what is empty and what stands in `readers`; the default stays, whatever it is."""
    return {
        name: value for name, value in entry.items() if name == "default" or (name != "reader" and not is_empty(value))
    }


def is_empty(value: Any) -> bool:
    return value is None or value is False or value == []


def readers(keys: dict[str, Any]) -> dict[str, str]:
    """`SECTION.*` -> the function (or class) that reads most keys of a section; path -> that of any other key."""
    counts: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for path, entry in sorted(keys.items()):
        counts[path.rpartition(".")[0]][entry["reader"]] += 1
    most = {section: count.most_common(1)[0][0] for section, count in counts.items()}
    others = {path: entry["reader"] for path, entry in keys.items() if entry["reader"] != most[path.rpartition(".")[0]]}
    return others | {f"{section}.*" if section else "*": reader for section, reader in most.items()}


def refused_at_sight() -> tuple[dict[str, str], dict[str, str]]:
    """What DeepSpeed says to keys that it has dropped: of the top level, and of zero_optimization (from 0.19.7 on)."""
    return (
        getattr(runtime_config, "_REMOVED_TOP_LEVEL_CONFIG_KEYS", {}),
        getattr(runtime_config, "_REMOVED_ZERO_CONFIG_KEYS", {}),
    )


def removed() -> list[str]:
    """Keys whose presence alone DeepSpeed refuses."""
    top, zero = refused_at_sight()
    return sorted({*top, *(f"zero_optimization.{key}" for key in zero)})


def without_removed(content: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in content.items() if key not in refused_at_sight()[0]}


# ---- 1. pydantic models


def models() -> dict[str, type]:
    """The sections that this version reads with a pydantic model."""
    parsed = runtime_config.DeepSpeedConfig(without_removed(CONTENT))
    found = {}
    for path, attribute in MODELS.items():
        value: Any = parsed
        for name in attribute.split("."):
            value = getattr(value, name, None)
        if value is not None:
            found[path] = type(value)
    for name, value in vars(parsed).items():
        if isinstance(value, PYDANTIC) and type(value) not in found.values() and name != "monitor_config":
            raise SystemExit(f"DeepSpeedConfig.{name} is a pydantic model that MODELS does not name")
    return found


@dataclasses.dataclass(frozen=True)
class Field:
    """A field of a pydantic model, whichever pydantic it is of."""

    alias: str
    annotation: Any
    required: bool
    default: Any
    limits: dict[str, Any]
    extra: dict[str, Any]


def fields_of(model: Any) -> dict[str, Field]:
    """The fields by name. DeepSpeed uses the first pydantic's classes up to 0.14.5."""
    if issubclass(model, pydantic.BaseModel):
        return {
            name: Field(
                alias=field.alias or name,
                annotation=field.annotation,
                required=field.is_required(),
                default=None if field.is_required() else field.get_default(call_default_factory=True),
                limits=limits(*field.metadata),
                extra=field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {},
            )
            for name, field in model.model_fields.items()
        }
    return {
        name: Field(
            alias=field.alias,
            annotation=typing.Optional[field.annotation] if field.allow_none else field.annotation,  # noqa: UP045
            required=bool(field.required),
            default=field.get_default(),
            limits=limits(field.field_info),
            extra=field.field_info.extra,
        )
        for name, field in model.__fields__.items()
    }


def refuses_unknown_keys(model: Any) -> bool:
    if issubclass(model, pydantic.BaseModel):
        return bool(model.model_config.get("extra") == "forbid")
    return bool(model.__config__.extra == "forbid")


def keys_of_model(section: str, model: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Keys and sections of a model, nested models included."""
    keys: dict[str, Any] = {}
    sections = {section: "refused" if refuses_unknown_keys(model) else "ignored"}
    reader = f"{relative(inspect.getfile(model))}:{model.__name__}"
    fields = fields_of(model)
    for name, field in fields.items():
        path = f"{section}.{field.alias}"
        entry, nested = described(field.annotation)
        entry["reader"] = reader
        entry["aliases"] = [name] if field.alias != name else []
        if nested is not None:
            nested_keys, nested_sections = keys_of_model(path, nested)
            keys.update(nested_keys)
            sections.update(nested_sections)
        elif not field.required:
            entry["default"] = plain(field.default)
        entry.update(field.limits)
        if field.extra.get("deprecated"):
            names = [each for each in str(field.extra.get("new_param", "")).split(" or ") if each]
            canonical = [fields[each].alias if each in fields else each for each in names]
            entry |= {"deprecated": True, "replaced_by": [f"{section}.{each}" for each in canonical]}
        keys[path] = entry
    return keys, sections


def limits(*holders: Any) -> dict[str, Any]:
    names = {"ge": "minimum", "gt": "exclusive_minimum", "le": "maximum", "lt": "exclusive_maximum"}
    return {
        name: plain(getattr(holder, short))
        for holder in holders
        for short, name in names.items()
        if getattr(holder, short, None) is not None
    }


def described(annotation: Any) -> tuple[dict[str, Any], type | None]:
    """Type, choices and nested model of an annotation."""
    entry: dict[str, Any] = {"choices": []}
    nested: type | None = None
    names: list[str] = []
    for option in alternatives(annotation):
        origin = typing.get_origin(option) or option
        if option is type(None):
            names.append("null")
        elif origin is typing.Literal:
            entry["choices"] += list(typing.get_args(option))
            names += [type(choice).__name__ for choice in typing.get_args(option)]
        elif isinstance(origin, type) and issubclass(origin, PYDANTIC):
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
        # The first pydantic makes a subclass of a number with limits.
        if isinstance(origin, type) and issubclass(origin, kind):
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
        return key in self._mapping  # type: ignore[attr-defined]


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
    runtime_config.DeepSpeedConfig(Recorder(without_removed(CONTENT), "", log))
    for content in FURTHER_CONTENT:
        if without_removed(content) != content:
            continue
        # Quantized weights end in a NameError up to 0.19.2 (get_eigenvalue_config).
        with contextlib.suppress(NameError):
            runtime_config.DeepSpeedConfig(Recorder(content, "", log))
    keys: dict[str, Any] = {}
    for look in log:
        known = keys.get(look.path)
        if known is None or ("default" not in known and look.has_default):
            keys[look.path] = {"reader": look.reader, **by_default(look)}
    nested = (path for content in (CONTENT, *FURTHER_CONTENT) for path in nested_paths(content))
    return keys, {"": "ignored", **{path: "ignored" for path in nested if path in keys}}


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
    """Types and choices from the dataclass that the section is read into, from 0.19.2 on."""
    if not hasattr(runtime_config, "get_expert_parallel_config"):
        return {}
    config = type(runtime_config.get_expert_parallel_config({}))
    hints = typing.get_type_hints(config)
    found = {}
    for field in dataclasses.fields(config):
        if field.init:
            entry, _ = described(hints[field.name])
            found[f"expert_parallel.{field.name}"] = entry | {
                "reader": "module_inject/auto_ep_config.py:parse_autoep_config"
            }
    # Given as objects that mean "not set"; a config gives a name, or null.
    found["expert_parallel.expert_w3"]["type"] = "str or null"
    found["expert_parallel.load_balance_coeff"]["type"] = "float or null"
    return found


def keys_of_initialize() -> dict[str, Any]:
    """Keys that deepspeed.initialize reads out of the config itself."""
    source = inspect.getsource(deepspeed.initialize)
    names = [name for name in ("data_parallel_size", "sequence_parallel_size") if f'"{name}"' in source]
    return {name: {"reader": "__init__.py:initialize"} for name in names}


def read_later(keys: dict[str, Any]) -> dict[str, Any]:
    """Keys of sections that are copied, and read in a running job."""
    return {path: {"reader": reader} for path, reader in READ_LATER.items() if path.rpartition(".")[0] in keys}


def choices_taken(path: str, choices: list[Any]) -> list[Any]:
    """The choices that the version takes: all of them where it does not look at the value when it reads the config."""
    return [choice for choice in choices if is_taken(path, choice)] if not is_taken(path, "no such") else choices


def is_taken(path: str, value: Any) -> bool:
    for name in reversed(path.split(".")):
        value = {name: value}
    try:
        runtime_config.DeepSpeedConfig({"train_batch_size": 1, **value})
    except (AssertionError, NotImplementedError, ValueError, runtime_config.DeepSpeedConfigError):
        return False
    return True


# Optimizers of the package mup, which is not installed here.
MUP = ("muadam", "muadamw", "musgd")


class Chosen(Exception):
    """The optimizer that the engine is about to build, instead of building it."""

    def __init__(self, cls: type, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.cls, self.arguments, self.keywords = cls, arguments, keywords


class Engine:
    """A DeepSpeedEngine without anything but its config: what only its constructor sets is False."""

    def __init__(self, config: Any) -> None:
        self._config = config

    def __getattr__(self, name: str) -> Any:
        attribute = inspect.getattr_static(engine.DeepSpeedEngine, name, False)
        return attribute.__get__(self) if hasattr(attribute, "__get__") else attribute


class Copying(dict):  # type: ignore[type-arg]
    """Stands for `dict`, and makes a Recorder of a Recorder."""

    def __new__(cls, content: Any = (), **more: Any) -> Any:
        return content.__copy__() if isinstance(content, Recorder) else dict(content, **more)


@contextlib.contextmanager
def choosing_only() -> Iterator[None]:
    """Instead of making an optimizer of any class, Chosen is raised; copies that the engine makes are looked on too."""

    def choose(cls: type, *arguments: Any, **keywords: Any) -> Any:
        raise Chosen(cls, arguments, keywords)

    torch.optim.Optimizer.__new__ = choose
    vars(engine)["dict"] = Copying
    try:
        yield
    finally:
        del torch.optim.Optimizer.__new__, vars(engine)["dict"]


def optimizers() -> dict[str, Any]:
    """Optimizer type in lower case -> the params that it takes, what becomes of others, and whether ZeRO takes it.

    Which class stands behind a type depends on where the states are (`device`, or `host` with offload) and on
    `torch_adam` (`torch`). Any other type is a class of torch.optim.
    """
    offload = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}
    ways: tuple[tuple[str, dict[str, Any], dict[str, Any]], ...] = (
        ("device", {}, {}),
        ("host", offload, {}),
        ("torch", {}, {"torch_adam": True}),
        ("torch", {}, {"torch_adam": True, "adam_w_mode": False}),
    )
    tested = optimizers_of_zero()
    found = {}
    for name in runtime_config.DEEPSPEED_OPTIMIZERS:
        if name in MUP:
            continue
        places: dict[type, str] = {}
        params: dict[str, set[str]] = {}
        unknown_reach = True
        for place, config, given in ways:
            choice = chosen(name, config, given)
            if choice is not None:
                cls, taken, reaches = choice
                params.setdefault(places.setdefault(cls, place), set()).update(taken)
                unknown_reach &= reaches
        found[name] = {
            "params": {place: sorted(names) for place, names in params.items()},
            "unknown_params": "refused" if unknown_reach else "ignored",
            "zero": places.keys() <= tested,
        }
    return found


def chosen(name: str, config: dict[str, Any], params: dict[str, Any]) -> tuple[type, set[str], bool] | None:
    """The class that the engine would build, the params that it could be given, and whether an unknown one reaches it.

    None where the engine refuses the optimizer.
    """
    log: list[LookUp] = []
    content = {"train_batch_size": 1, "optimizer": {"type": name, "params": {"no such": 1, **params}}, **config}
    parsed = runtime_config.DeepSpeedConfig(Recorder(content, "", log))
    log.clear()
    model = torch.nn.Linear(1, 1)
    model.weight.use_muon, model.bias.use_muon = True, False
    if hasattr(deepspeed, "set_optimizer_flags"):
        deepspeed.set_optimizer_flags(parsed, model)
    with choosing_only():
        try:
            Engine(parsed)._configure_basic_optimizer([model.weight, model.bias])
        except Chosen as choice:
            looked_up = {look.path.rpartition(".")[2] for look in log if look.path.startswith("optimizer.params.")}
            reaches = "no such" in choice.keywords
            signature = inspect.signature(choice.cls)
            own = set(signature.parameters) if reaches else set()
            # What the engine passes itself would be given twice.
            given = {*signature.bind_partial(*choice.arguments).arguments, *choice.keywords}
            # Some classes take it, and the engine refuses it.
            return choice.cls, ((own - given) | looked_up) - {"max_grad_norm"}, reaches
        except AssertionError:
            return None
    raise SystemExit(f"the engine builds no optimizer for {name}")


def optimizers_of_zero() -> set[type]:
    """The classes that ZeRO takes without being told to. Being asked for one adds Muon's, from 0.19.3 on."""
    rank = zero_utils.dist.get_rank
    zero_utils.dist.get_rank = lambda: 1
    try:
        zero_utils.is_zero_supported_optimizer(None)
    finally:
        zero_utils.dist.get_rank = rank
    return set(zero_utils.ZERO_SUPPORTED_OPTIMIZERS)


def schedulers() -> dict[str, Any]:
    """Scheduler type -> its params and the ones that must be given."""
    found = {}
    for name in lr_schedules.VALID_LR_SCHEDULES:
        parameters = dict(inspect.signature(getattr(lr_schedules, name)).parameters)
        # The engine gives the first; a resumed job the second.
        del parameters["optimizer"], parameters["last_batch_iteration"]
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
        "comm_backend_name": "str",
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
    if name.endswith(("_steps", "_step_size", "_count", "freeze_step", "_clipper", "_scaler")):
        return "int"
    if name in SWITCHES:
        return "bool"
    return "float"


SWITCHES = {
    "adam_w_mode",
    "amsgrad",
    "bias_correction",
    "capturable",
    "cuda_aware",
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


if __name__ == "__main__":
    raise SystemExit(main())
