"""Model architectures: the shipped presets, and the reader of any Hugging Face `config.json` of the same families."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dsgen.catalog.datafiles import read_yaml
from dsgen.catalog.lookup import UnknownName


class UnknownModel(UnknownName):
    """No preset or size has that name; `suggestions` are the nearest presets."""

    kind = "model"


class BadArchitecture(ValueError):
    """A config that describes no model of a supported family.

    `model` is the name given to the config, `field` the field that is wrong, `problem` what is wrong with it and
    `expected` what would be right.
    """

    def __init__(self, model: str, field: str, problem: str, expected: str) -> None:
        self.model = model
        self.field = field
        self.problem = problem
        self.expected = expected
        super().__init__(f"{model}: {field} {problem}; expected {expected}")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The shape of a decoder-only transformer. Sizes count elements."""

    name: str
    """Name of the preset, or the name given to the config."""
    family: str
    """`model_type` of the config: llama, mistral, qwen2, qwen3 or baichuan."""
    hidden_size: int
    intermediate_size: int
    """Width of the gated feed-forward part."""
    layers: int
    attention_heads: int
    key_value_heads: int
    """Heads of keys and values; `attention_heads` when each head has its own."""
    head_dim: int
    vocabulary_size: int
    tied_embeddings: bool
    """Whether the output head is the embedding matrix itself."""
    max_position_embeddings: int | None
    """Longest sequence the positions are made for; None when the config does not say (ALiBi)."""
    query_key_value_bias: bool
    """Whether the projections to queries, keys and values have a bias."""
    attention_output_bias: bool
    """Whether the projection after attention has a bias."""
    feed_forward_bias: bool
    """Whether the three feed-forward projections have a bias."""
    query_key_norm: bool
    """Whether each head's queries and keys are normalised (one weight vector of `head_dim` for each)."""
    config: Mapping[str, Any] = field(hash=False, repr=False)
    """Fields of the Hugging Face config to build the model with, `model_type` included. transformers changes nested
    values of what it is given while it builds: pass it `model_config()`."""

    @property
    def query_size(self) -> int:
        """Elements of all heads' queries of one token."""
        return self.attention_heads * self.head_dim

    @property
    def key_value_size(self) -> int:
        """Elements of all heads' keys (or values) of one token."""
        return self.key_value_heads * self.head_dim

    def model_config(self) -> dict[str, Any]:
        """A copy of `config` that may be changed, for `transformers.AutoConfig.for_model(**...)`."""
        return copy.deepcopy(dict(self.config))


@dataclass(frozen=True, kw_only=True)
class _Family:
    """What transformers' config class of a family assumes for a field that the config leaves out."""

    key_value_heads: int | None = None
    """None: as many as attention heads."""
    head_dim: int | None = None
    """None: hidden size / attention heads."""
    max_positions: int | None
    position_fields: tuple[str, ...] = ("max_position_embeddings",)
    query_key_value_bias: bool = False
    """Whether the bias is there whatever the config says."""
    attention_bias_field: bool = False
    """Whether `attention_bias` puts a bias on all four attention projections."""
    mlp_bias_field: bool = False
    query_key_norm: bool = False
    heads_divide_hidden: bool = False
    """Whether the hidden size must be a multiple of the heads even when the config gives `head_dim`."""
    own_head_dim: bool = True
    """Whether the model code reads `head_dim`."""
    own_key_value_heads: bool = True
    """Whether the model code reads `num_key_value_heads`."""


# Sources: configuration_{llama,mistral,qwen2,qwen3}.py of transformers 5.24; configuration_baichuan.py and
# modeling_baichuan.py in the repositories of Baichuan2-7B-Base and Baichuan2-13B-Base.
_FAMILIES = {
    "llama": _Family(max_positions=2048, attention_bias_field=True, mlp_bias_field=True, heads_divide_hidden=True),
    "mistral": _Family(key_value_heads=8, max_positions=131072),
    "qwen2": _Family(key_value_heads=32, max_positions=32768, query_key_value_bias=True),
    "qwen3": _Family(
        key_value_heads=32, head_dim=128, max_positions=32768, attention_bias_field=True, query_key_norm=True
    ),
    "baichuan": _Family(
        max_positions=None,
        position_fields=("max_position_embeddings", "model_max_length"),
        own_head_dim=False,
        own_key_value_heads=False,
        heads_divide_hidden=True,
    ),
}

# About a hundred times the largest model in use: beyond, it is a slip of the keyboard.
_LIMITS = {
    "hidden_size": 1_000_000,
    "intermediate_size": 10_000_000,
    "num_hidden_layers": 10_000,
    "num_attention_heads": 100_000,
    "num_key_value_heads": 100_000,
    "head_dim": 100_000,
    "vocab_size": 100_000_000,
    "max_position_embeddings": 1_000_000_000,
    "model_max_length": 1_000_000_000,
}

# What a config.json says about the checkpoint beside it, and not about the model.
_NOT_OF_THE_MODEL = {
    "_from_model_config",
    "_name_or_path",
    "architectures",
    "auto_map",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "use_cache",
}

_DEPTH = 64

SHAPE_FIELDS = (*_LIMITS, "tie_word_embeddings", "attention_bias", "mlp_bias")
"""The config's fields that say how many parameters there are, and of which shape."""

_NULL_IS_DEFAULT = ("head_dim", "max_position_embeddings", "tie_word_embeddings", "attention_bias", "mlp_bias")


def supported_families() -> tuple[str, ...]:
    """The `model_type` values that `from_config` reads."""
    return tuple(_FAMILIES)


def preset_names() -> tuple[str, ...]:
    """The names of all presets, family by family, small to large."""
    return tuple(name for names in _index()["presets"].values() for name in names)


def sizes() -> Mapping[str, str]:
    """What a bare size means: `7b` -> `llama-2-7b`. The rule stands in `data/models/index.yaml`."""
    return dict(_index()["sizes"])


def load_preset(name: str) -> Architecture:
    """The preset of that name, or the one that a bare size stands for; upper and lower case are the same.

    Raises UnknownModel.
    """
    wanted = name.strip().lower()
    index = _index()
    preset = index["sizes"].get(wanted, wanted)
    for file, names in index["presets"].items():
        if preset in names:
            return from_config(read_yaml(f"models/{file}.yaml")[preset]["config"], name=preset)
    raise UnknownModel(name, (*preset_names(), *index["sizes"]))


def preset_source(name: str) -> tuple[str, str]:
    """Where a preset's values come from: the public repository that holds the config, and the day it was published
    (ISO date).

    Raises UnknownModel.
    """
    preset = load_preset(name).name
    for file, names in _index()["presets"].items():
        if preset in names:
            entry = read_yaml(f"models/{file}.yaml")[preset]
            return entry["source"], entry["date"]
    raise UnknownModel(name, preset_names())


def from_config(config: Mapping[str, Any], *, name: str) -> Architecture:
    """Read a Hugging Face `config.json` (as a mapping); `name` is what messages and reports call the model.

    A field that is left out, and may be, has the default of the family's transformers config class.

    Raises BadArchitecture when the family is not supported, a field is missing, of a wrong type, not positive, far too
    large or does not go with another one, and when the config describes a quantised checkpoint.
    """
    return _Reader(config, name).read()


def _index() -> Any:
    return read_yaml("models/index.yaml")


class _Reader:
    """One config on its way to an Architecture."""

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.config = config
        self.name = name

    def read(self) -> Architecture:
        model_type = self.family_name()
        family = _FAMILIES[model_type]
        hidden = self.count("hidden_size")
        heads = self.count("num_attention_heads")
        key_value_heads = self.key_value_heads(family, heads)
        bias = family.attention_bias_field and self.flag("attention_bias")
        return Architecture(
            name=self.name,
            family=model_type,
            hidden_size=hidden,
            intermediate_size=self.count("intermediate_size"),
            layers=self.count("num_hidden_layers"),
            attention_heads=heads,
            key_value_heads=key_value_heads,
            head_dim=self.head_dim(family, hidden, heads),
            vocabulary_size=self.count("vocab_size"),
            tied_embeddings=self.flag("tie_word_embeddings"),
            max_position_embeddings=self.max_positions(family),
            query_key_value_bias=bias or family.query_key_value_bias,
            attention_output_bias=bias,
            feed_forward_bias=family.mlp_bias_field and self.flag("mlp_bias"),
            query_key_norm=family.query_key_norm,
            config=self.model_fields(key_value_heads),
        )

    def bad(self, field: str, problem: str, expected: str) -> BadArchitecture:
        return BadArchitecture(self.name, field, problem, expected)

    def family_name(self) -> str:
        choice = f"one of {', '.join(_FAMILIES)}"
        if "model_type" not in self.config:
            raise self.bad("model_type", "is missing", choice)
        model_type = self.config["model_type"]
        if not isinstance(model_type, str) or model_type not in _FAMILIES:
            raise self.bad("model_type", f"{model_type!r} is not supported", choice)
        if self.config.get("quantization_config") is not None:
            raise self.bad("quantization_config", "describes a quantised checkpoint", "a config of unquantised weights")
        return model_type

    def count(self, field: str) -> int:
        limit = _LIMITS[field]
        expected = f"a whole number from 1 to {limit}"
        value = self.config.get(field)
        if value is None:
            raise self.bad(field, "is missing", expected)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.bad(field, f"is {value!r}", expected)
        if value < 1:
            raise self.bad(field, f"is {value}", expected)
        if value > limit:
            raise self.bad(field, f"is {value}, which no model has", expected)
        return value

    def flag(self, field: str) -> bool:
        value = self.config.get(field)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self.bad(field, f"is {value!r}", "true or false")
        return value

    def key_value_heads(self, family: _Family, heads: int) -> int:
        field = "num_key_value_heads"
        if self.config.get(field) is not None:
            value, origin = self.count(field), ""
        elif field in self.config or family.key_value_heads is None:
            return heads
        else:
            value, origin = family.key_value_heads, " (the default of this family, since it is left out)"
        if not family.own_key_value_heads and value != heads:
            raise self.bad(field, f"is {value}", f"{heads}: this family has keys and values for every attention head")
        if heads % value:
            problem = f"is {value}{origin}, which does not divide num_attention_heads {heads}"
            raise self.bad(field, problem, f"a divisor of {heads}")
        return value

    def head_dim(self, family: _Family, hidden: int, heads: int) -> int:
        given = self.config.get("head_dim") is not None
        fixed = self.count("head_dim") if given else family.head_dim
        if hidden % heads and (fixed is None or family.heads_divide_hidden):
            problem = f"is {hidden}, which is not a multiple of num_attention_heads {heads}"
            expected = f"a multiple of {heads}" + ("" if family.heads_divide_hidden else ", or a head_dim")
            raise self.bad("hidden_size", problem, expected)
        value = fixed if fixed is not None else hidden // heads
        if not family.own_head_dim and value != hidden // heads:
            expected = f"{hidden // heads}: this family splits hidden_size evenly over its heads"
            raise self.bad("head_dim", f"is {value}", expected)
        if value % 2:
            place = "head_dim" if fixed is not None else "hidden_size"
            raise self.bad(
                place, f"makes heads of {value} elements", "heads of an even size (rotary positions pair them)"
            )
        return value

    def max_positions(self, family: _Family) -> int | None:
        for name in family.position_fields:
            if self.config.get(name) is not None:
                return self.count(name)
        return family.max_positions

    def model_fields(self, key_value_heads: int) -> dict[str, Any]:
        fields = {key: value for key, value in self.config.items() if key not in _NOT_OF_THE_MODEL}
        for key, value in fields.items():
            problem = _unfit(value)
            if problem is not None:
                raise self.bad(key, problem, f"finite numbers, nested at most {_DEPTH} deep")
        # Older versions of transformers took null for "the default" where 5.x refuses it.
        for key in _NULL_IS_DEFAULT:
            if key in fields and fields[key] is None:
                del fields[key]
        if fields.get("num_key_value_heads", key_value_heads) is None:
            fields["num_key_value_heads"] = key_value_heads
        return copy.deepcopy(fields)


def _unfit(value: Any, depth: int = 0) -> str | None:
    """Why a value cannot be handed on; None when it can."""
    if depth > _DEPTH:
        return "is nested too deeply"
    if isinstance(value, float) and not math.isfinite(value):
        return "holds inf or nan"
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return next(filter(None, (_unfit(each, depth + 1) for each in inner)), None)
