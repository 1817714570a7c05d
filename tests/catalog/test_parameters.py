from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsgen.catalog.models import from_config, load_preset, preset_names
from dsgen.catalog.parameters import adapter_parameters, adapter_targets, count_parameters, parameter_shapes

os.environ["HF_HUB_OFFLINE"] = "1"

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Published with the models: the sum over the tensors of the safetensors files, tied embeddings once.
KNOWN_TOTALS = {
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "tinyllama-1.1b": 1_100_048_384,
    "qwen2.5-0.5b": 494_032_768,
    "qwen2.5-7b": 7_615_616_512,
    "qwen2.5-72b": 72_706_203_648,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "mistral-7b-v0.1": 7_241_732_096,
    "mistral-7b-v0.3": 7_248_023_552,
    "baichuan2-7b": 7_505_973_248,
    "baichuan2-13b": 13_896_668_160,
}


def built(architecture):
    """The model that transformers builds, without storage."""
    config = transformers.AutoConfig.for_model(**architecture.model_config())
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(config)


def shapes_of(model):
    return [(name, tuple(parameter.shape)) for name, parameter in model.named_parameters()]


@pytest.mark.parametrize(("name", "total"), KNOWN_TOTALS.items())
def test_totals_are_the_published_ones(name, total):
    assert count_parameters(load_preset(name)).total == total


@pytest.mark.parametrize("name", [name for name in preset_names() if not name.startswith("baichuan")])
def test_preset_shapes_are_those_of_the_built_model(name):
    architecture = load_preset(name)
    model = built(architecture)
    assert list(parameter_shapes(architecture)) == shapes_of(model)
    assert count_parameters(architecture).total == model.num_parameters()


def test_parts_of_the_count():
    count = count_parameters(load_preset("llama-2-7b"))
    assert count.embedding == count.output_head == 131_072_000
    assert count.per_layer == 202_383_360
    assert count.final_norm == 4096
    assert count.largest_tensor == count.largest_layer == 131_072_000
    tied = count_parameters(load_preset("llama-3.2-1b"))
    assert (tied.embedding, tied.output_head) == (262_668_288, 0)


def test_largest_layer_is_the_one_of_deepspeeds_estimator():
    # Weight and bias of one projection together are larger than the embedding here.
    architecture = from_config(
        {
            "model_type": "llama",
            "hidden_size": 64,
            "intermediate_size": 500,
            "num_hidden_layers": 1,
            "num_attention_heads": 4,
            "vocab_size": 32,
            "mlp_bias": True,
        },
        name="wide",
    )
    model = built(architecture)
    own = [sum(p.numel() for p in module.parameters(recurse=False)) for module in model.modules()]
    count = count_parameters(architecture)
    assert count.largest_layer == max(own) == 64 * 500 + 500
    assert count.largest_tensor == 64 * 500


@pytest.mark.parametrize("name", ["baichuan2-7b", "baichuan2-13b"])
def test_baichuan_is_a_llama_with_fused_attention(name):
    architecture = load_preset(name)
    fields = {**architecture.config, "model_type": "llama"}
    llama = dict(shapes_of(built(from_config(fields, name="llama"))))
    fused = dict(parameter_shapes(architecture))
    for index in range(architecture.layers):
        prefix = f"model.layers.{index}.self_attn"
        parts = [llama.pop(f"{prefix}.{part}_proj.weight") for part in "qkv"]
        assert fused.pop(f"{prefix}.W_pack.weight") == (sum(rows for rows, _ in parts), parts[0][1])
    assert fused == llama


@st.composite
def configs(draw):
    family = draw(st.sampled_from(("llama", "mistral", "qwen2", "qwen3")))
    key_value_heads = draw(st.integers(1, 3))
    heads = key_value_heads * draw(st.integers(1, 3))
    config = {
        "model_type": family,
        "hidden_size": heads * 2 * draw(st.integers(1, 6)),
        "intermediate_size": draw(st.integers(1, 70)),
        "num_hidden_layers": draw(st.integers(1, 3)),
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from((key_value_heads, None))),
        "vocab_size": draw(st.integers(4, 90)),
        "tie_word_embeddings": draw(st.booleans()),
        "attention_bias": draw(st.booleans()),
        "mlp_bias": draw(st.booleans()),
        # Beyond a small vocabulary transformers would ask for a token that is not there.
        "pad_token_id": None,
        "bos_token_id": 1,
        "eos_token_id": 2,
    }
    if draw(st.booleans()):
        config["head_dim"] = 2 * draw(st.integers(1, 9))
    return config


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(configs())
def test_random_shapes_are_those_of_the_built_model(config):
    architecture = from_config(config, name="random")
    model = built(architecture)
    assert list(parameter_shapes(architecture)) == shapes_of(model)
    count = count_parameters(architecture)
    assert count.total == model.num_parameters()
    assert count.per_layer == sum(p.numel() for p in model.model.layers[0].parameters())
    assert count.largest_tensor == max(p.numel() for p in model.parameters())


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(configs(), st.integers(1, 5), st.data())
def test_adapters_are_those_of_peft(config, rank, data):
    peft = pytest.importorskip("peft")
    architecture = from_config({**config, "tie_word_embeddings": False}, name="random")
    targets = data.draw(st.lists(st.sampled_from(adapter_targets(architecture)), min_size=1, unique=True))
    adapted = peft.inject_adapter_in_model(peft.LoraConfig(r=rank, target_modules=targets), built(architecture))
    added = sum(p.numel() for name, p in adapted.named_parameters() if ".lora_" in name)
    assert adapter_parameters(architecture, rank, targets) == added


def test_adapters_of_known_models():
    architecture = load_preset("llama-2-7b")
    # 32 layers, two square projections of 4096, rank 8: the figure of the LoRA paper's setting on this model.
    assert adapter_parameters(architecture, 8, ["q_proj", "v_proj"]) == 4_194_304
    assert adapter_parameters(architecture, 8, ["q_proj", "q_proj"]) == 2_097_152
    assert adapter_targets(load_preset("baichuan2-7b"))[:2] == ("W_pack", "o_proj")
    assert adapter_parameters(load_preset("baichuan2-7b"), 1, ["W_pack"]) == 32 * (4096 + 3 * 4096)
    with pytest.raises(ValueError, match="llama-2-7b has no module 'W_pack'; it has q_proj, k_proj"):
        adapter_parameters(architecture, 8, ["W_pack"])
    with pytest.raises(ValueError, match="rank is 0"):
        adapter_parameters(architecture, 0, ["q_proj"])
