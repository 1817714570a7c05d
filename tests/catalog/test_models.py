from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsgen.catalog.datafiles import read_yaml
from dsgen.catalog.models import (
    Architecture,
    BadArchitecture,
    UnknownModel,
    from_config,
    load_preset,
    preset_names,
    preset_source,
    sizes,
    supported_families,
)

os.environ["HF_HUB_OFFLINE"] = "1"

LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
}


def test_presets_and_sizes_are_the_documented_ones():
    assert preset_names() == (
        "llama-2-7b",
        "llama-2-13b",
        "llama-2-70b",
        "llama-3.1-8b",
        "llama-3.1-70b",
        "llama-3.2-1b",
        "llama-3.2-3b",
        "tinyllama-1.1b",
        "qwen2.5-0.5b",
        "qwen2.5-1.5b",
        "qwen2.5-3b",
        "qwen2.5-7b",
        "qwen2.5-14b",
        "qwen2.5-32b",
        "qwen2.5-72b",
        "qwen3-0.6b",
        "qwen3-1.7b",
        "qwen3-4b",
        "qwen3-8b",
        "qwen3-14b",
        "qwen3-32b",
        "mistral-7b-v0.1",
        "mistral-7b-v0.3",
        "baichuan2-7b",
        "baichuan2-13b",
    )
    meaning = sizes()
    assert meaning["7b"] == "llama-2-7b"
    assert meaning["13b"] == "llama-2-13b"
    assert meaning["70b"] == "llama-2-70b"
    assert meaning["8b"] == "llama-3.1-8b"
    assert meaning["1b"] == "llama-3.2-1b"
    assert set(meaning.values()) <= set(preset_names())


def test_index_and_files_hold_the_same_presets():
    for file, names in read_yaml("models/index.yaml")["presets"].items():
        assert list(read_yaml(f"models/{file}.yaml")) == names


def test_a_size_has_the_number_of_parameters_it_says():
    from dsgen.catalog.parameters import count_parameters

    for size, preset in sizes().items():
        billions = count_parameters(load_preset(preset)).total / 1e9
        assert float(size.removesuffix("b")) == pytest.approx(billions, rel=0.25)


def test_preset_of_grouped_heads_and_of_explicit_head_dim():
    assert load_preset("LLAMA-2-70B") == load_preset("70b")
    big = load_preset("70b")
    assert (big.name, big.family, big.layers) == ("llama-2-70b", "llama", 80)
    assert (big.hidden_size, big.intermediate_size, big.vocabulary_size) == (8192, 28672, 32000)
    assert (big.attention_heads, big.key_value_heads, big.head_dim) == (64, 8, 128)
    assert (big.query_size, big.key_value_size) == (8192, 1024)
    assert big.max_position_embeddings == 4096
    small = load_preset("qwen3-0.6b")
    assert (small.hidden_size, small.attention_heads, small.head_dim) == (1024, 16, 128)
    assert small.query_size == 2048
    assert small.tied_embeddings and small.query_key_norm and not small.query_key_value_bias


def test_biases_by_family():
    qwen2 = load_preset("qwen2.5-7b")
    assert qwen2.query_key_value_bias and not qwen2.attention_output_bias and not qwen2.query_key_norm
    llama = from_config({**LLAMA, "attention_bias": True, "mlp_bias": True}, name="biased")
    assert llama.query_key_value_bias and llama.attention_output_bias and llama.feed_forward_bias
    # Mistral's model code reads neither field.
    mistral = from_config(
        {**LLAMA, "model_type": "mistral", "num_key_value_heads": 2, "attention_bias": True, "mlp_bias": True}, name="m"
    )
    assert not (mistral.query_key_value_bias or mistral.attention_output_bias or mistral.feed_forward_bias)


def test_positions_of_baichuan_come_from_either_field():
    assert load_preset("baichuan2-7b").max_position_embeddings == 4096
    assert "max_position_embeddings" not in load_preset("baichuan2-13b").config
    assert load_preset("baichuan2-13b").max_position_embeddings == 4096


def test_source_of_a_preset():
    assert preset_source("8b") == ("meta-llama/Llama-3.1-8B", "2024-07-23")
    assert all(repository.count("/") == 1 for repository, _ in map(preset_source, preset_names()))


def test_unknown_model_names_the_nearest_ones():
    with pytest.raises(UnknownModel, match="did you mean") as caught:
        load_preset("lama-2-13b")
    assert caught.value.suggestions[0] == "llama-2-13b"
    with pytest.raises(UnknownModel) as caught:
        load_preset("mistral")
    assert caught.value.suggestions == ("mistral-7b-v0.1", "mistral-7b-v0.3")
    assert isinstance(caught.value, ValueError)


def test_loading_shares_nothing_that_can_be_changed():
    first = load_preset("llama-3.1-8b")
    first.model_config()["rope_scaling"]["factor"] = 1.0
    assert first.config["rope_scaling"]["factor"] == 8.0
    first.config["rope_scaling"]["factor"] = 2.0
    assert load_preset("llama-3.1-8b").config["rope_scaling"]["factor"] == 8.0
    assert hash(first) == hash(load_preset("llama-3.1-8b"))


def test_defaults_are_those_of_the_transformers_class():
    llama = from_config(LLAMA, name="l")
    assert (llama.key_value_heads, llama.head_dim, llama.max_position_embeddings) == (4, 16, 2048)
    assert not llama.tied_embeddings
    # Left out and null differ: Mistral's default is 8 heads, null means one for each attention head.
    mistral = {**LLAMA, "model_type": "mistral", "num_attention_heads": 16}
    assert from_config(mistral, name="m").key_value_heads == 8
    assert from_config({**mistral, "num_key_value_heads": None}, name="m").key_value_heads == 16
    assert from_config(mistral, name="m").max_position_embeddings == 131072
    qwen3 = from_config({**LLAMA, "model_type": "qwen3", "num_key_value_heads": 2}, name="q")
    assert qwen3.head_dim == 128


def test_config_keeps_what_the_model_needs_and_drops_what_the_checkpoint_says():
    read = from_config(
        {
            **LLAMA,
            "head_dim": None,
            "rope_theta": 5e5,
            "architectures": ["LlamaForCausalLM"],
            "torch_dtype": "float16",
            "transformers_version": "4.31.0",
            "_name_or_path": "somewhere",
        },
        name="l",
    )
    assert read.config == {**LLAMA, "rope_theta": 5e5}
    json.dumps(read.config)
    nulls = from_config({**LLAMA, "tie_word_embeddings": None, "num_key_value_heads": None}, name="l")
    assert nulls.config == {**LLAMA, "num_key_value_heads": 4}


@pytest.mark.parametrize(
    ("change", "field", "words"),
    [
        ({"model_type": "gpt2"}, "model_type", "'gpt2' is not supported; expected one of llama, mistral, "),
        ({"model_type": None}, "model_type", "None is not supported"),
        ({"model_type": ["llama"]}, "model_type", "not supported"),
        ({"hidden_size": ...}, "hidden_size", "is missing; expected a whole number from 1"),
        ({"vocab_size": ...}, "vocab_size", "is missing"),
        ({"hidden_size": "64"}, "hidden_size", "is '64'"),
        ({"hidden_size": 64.0}, "hidden_size", "is 64.0"),
        ({"num_hidden_layers": True}, "num_hidden_layers", "is True"),
        ({"num_hidden_layers": 0}, "num_hidden_layers", "is 0"),
        ({"intermediate_size": -1}, "intermediate_size", "is -1"),
        ({"hidden_size": 4_000_000}, "hidden_size", "is 4000000, which no model has; expected .* to 1000000"),
        ({"num_hidden_layers": 40_000}, "num_hidden_layers", "which no model has"),
        ({"num_attention_heads": 5}, "hidden_size", "is 64, which is not a multiple of num_attention_heads 5"),
        ({"num_key_value_heads": 3}, "num_key_value_heads", "is 3, which does not divide num_attention_heads 4"),
        ({"num_key_value_heads": 8}, "num_key_value_heads", "does not divide"),
        ({"num_attention_heads": 64}, "hidden_size", "heads of 1 elements"),
        ({"head_dim": 15}, "head_dim", "heads of 15 elements"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings", "expected true or false"),
        ({"attention_bias": 1}, "attention_bias", "expected true or false"),
        ({"max_position_embeddings": 0}, "max_position_embeddings", "is 0"),
        ({"quantization_config": {"bits": 4}}, "quantization_config", "quantised checkpoint"),
        ({"model_type": "mistral"}, "num_key_value_heads", "is 8 \\(the default of this family"),
        ({"model_type": "baichuan", "num_key_value_heads": 2}, "num_key_value_heads", "expected 4: this family"),
        ({"model_type": "baichuan", "head_dim": 32}, "head_dim", "expected 16"),
        # transformers' Llama refuses this one even with head_dim.
        ({"num_attention_heads": 5, "head_dim": 16}, "hidden_size", "expected a multiple of 5$"),
    ],
)  # fmt: skip
def test_bad_configs_name_the_field(change, field, words):
    config = {key: value for key, value in {**LLAMA, **change}.items() if value is not ...}
    with pytest.raises(BadArchitecture, match=words) as caught:
        from_config(config, name="mine")
    assert caught.value.field == field
    assert str(caught.value).startswith(f"mine: {field} ")


def test_missing_family_is_named():
    with pytest.raises(BadArchitecture, match="model_type is missing"):
        from_config({}, name="mine")
    assert supported_families() == ("llama", "mistral", "qwen2", "qwen3", "baichuan")


def test_head_dim_frees_the_hidden_size():
    read = from_config(
        {**LLAMA, "model_type": "qwen3", "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10}, name="q"
    )
    assert (read.hidden_size, read.query_size, read.key_value_size) == (64, 60, 20)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(supported_families()), st.sampled_from((*LLAMA, "num_key_value_heads", "head_dim")), JSON)
def test_any_value_gives_an_architecture_or_names_its_field(family, field, value):
    config = {**LLAMA, "model_type": family, "num_key_value_heads": 4, field: value}
    try:
        read = from_config(config, name="any")
    except BadArchitecture as error:
        assert error.expected
    else:
        assert isinstance(read, Architecture)
        assert read.attention_heads % read.key_value_heads == 0


@pytest.mark.parametrize("name", [name for name in preset_names() if not name.startswith("baichuan")])
def test_rope_and_lengths_arrive_in_the_built_config(name):
    transformers = pytest.importorskip("transformers")
    architecture = load_preset(name)
    built = transformers.AutoConfig.for_model(**architecture.model_config())
    published = architecture.config
    assert built.rope_parameters["rope_theta"] == published.get("rope_theta", 10000.0)
    scaling = published.get("rope_scaling") or {"rope_type": "default"}
    assert {key: built.rope_parameters[key] for key in scaling} == scaling
    for field in (
        "max_position_embeddings",
        "rms_norm_eps",
        "vocab_size",
        "initializer_range",
        "bos_token_id",
        "eos_token_id",
    ):
        assert getattr(built, field) == published[field]
    assert built.tie_word_embeddings == architecture.tied_embeddings
    if architecture.family == "mistral":
        assert built.sliding_window == published["sliding_window"]
    else:
        assert getattr(built, "sliding_window", None) is None
