from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from dsgen.catalog import deepspeed_keys
from dsgen.catalog.deepspeed_keys import DEFAULT_VERSION, UnknownVersion, known_versions, load_keys, nearest_version

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = Path(deepspeed_keys.__file__).parent / "data" / "deepspeed"


@pytest.fixture(scope="module")
def keys():
    return load_keys("0.19.8")


def test_shipped_file_is_what_the_installed_deepspeed_gives(tmp_path):
    try:
        version = metadata.version("deepspeed")
    except metadata.PackageNotFoundError:
        pytest.skip("DeepSpeed is not installed")
    if version not in known_versions():
        pytest.skip(f"no key data are shipped for DeepSpeed {version}")
    output = tmp_path / "keys.json"
    subprocess.run(
        [sys.executable, str(ROOT / "tools" / "derive_deepspeed_keys.py"), "--output", str(output)],
        check=True,
        env={**os.environ, "DS_ACCELERATOR": "cpu"},
        stdout=subprocess.PIPE,
        timeout=120,
    )
    shipped = json.loads((SHIPPED / f"{version}.json").read_text(encoding="utf-8"))
    derived = json.loads(output.read_text(encoding="utf-8"))
    if derived["torch"] != shipped["torch"]:
        for document in (derived, shipped):
            for name in ("torch", "optimizers"):
                del document[name]
            document["keys"] = {
                path: entry for path, entry in document["keys"].items() if not path.startswith("optimizer.params.")
            }
    assert derived == shipped


def test_versions(keys):
    assert load_keys() is keys
    assert keys.version == DEFAULT_VERSION == known_versions()[-1]
    with pytest.raises(UnknownVersion, match=r"0\.1\.0; there are data for 0\.14\.0 to 0\.19\.8"):
        load_keys("0.1.0")


def test_every_release_is_known_oldest_first(monkeypatch):
    releases = {14: 6, 15: 5, 16: 10, 17: 7, 18: 10, 19: 9}
    assert known_versions() == tuple(
        f"0.{minor}.{patch}" for minor, count in releases.items() for patch in range(count)
    )
    # Sorted by number, not by letter.
    monkeypatch.setattr(deepspeed_keys, "names", lambda folder, suffix: ("0.14.0", "0.14.10", "0.14.9", "history"))
    assert known_versions.__wrapped__() == ("0.14.0", "0.14.9", "0.14.10")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("0.17.2", "0.17.2"),
        (" v0.17.2 ", "0.17.2"),
        ("0.16.9+abc", "0.16.9"),
        ("0.17.0.dev", "0.17.0"),
        ("0.17.0.dev20250601+cu124", "0.17.0"),
        ("0.18.0rc1", "0.18.0"),
        ("0.18.0-1", "0.18.0"),
        ("0.14", "0.14.5"),
        ("0.16.x", "0.16.9"),
        ("0.17.*", "0.17.6"),
        ("0", "0.19.8"),
        ("0.19.99", "0.19.8"),
        ("0.20", "0.19.8"),
        ("1.0.0+x", "0.19.8"),
    ],
)
def test_nearest_version(text, version):
    assert nearest_version(text) == version


@pytest.mark.parametrize("text", ["0.13.5", "0.14.99", "0.1", "0.17.2x", "0.17..2", "newest", "", "x"])
def test_no_version_is_near(text):
    with pytest.raises(UnknownVersion):
        nearest_version(text)


@pytest.mark.parametrize("version", known_versions())
def test_the_data_of_a_version_are_consistent(version):
    keys = load_keys(version)
    assert keys.version == version
    paths = [key.path for key in keys]
    assert len(paths) == len(set(paths)) == len(keys) > 350
    for key in keys:
        section = key.path.rpartition(".")[0]
        assert section in keys.known_sections
        assert ("dict" in key.types) == (key.path in keys.known_sections) or not key.default
        assert keys.get(key.path) is key and key.reader.split(":")[0].endswith(".py")
        for alias in key.aliases:
            path = f"{section}.{alias}" if section else alias
            assert keys.get(path) is key and keys.canonical(path) == key.path
        assert all(keys.get(path) is not None for path in key.replaced_by)
        if key.choices and key.default is not None and "list" not in key.types:
            assert key.default in key.choices
        if isinstance(key.default, (int, float)) and not isinstance(key.default, bool):
            assert key.minimum is None or key.default >= key.minimum
            assert key.maximum is None or key.default <= key.maximum
    assert all(not section or "dict" in keys.get(section).types for section in keys.known_sections)
    assert all(keys.get(path) is None for path in keys.removed)
    for section, found in (("optimizer", keys.optimizers), ("scheduler", keys.schedulers)):
        taken = {name for params in found.values() for name in params.names}
        assert {key.name for key in keys.children(f"{section}.params")} - {"max_grad_norm"} == taken
    assert {"adam", "adamw", "adagrad", "lamb", "lion"} <= keys.optimizers.keys()


@pytest.mark.parametrize(
    ("version", "path", "expected"),
    [
        ("0.15.1", "steps_per_print", {"default": 10, "types": ("int",)}),
        ("0.15.2", "steps_per_print", {"default": None, "types": ("int", "null")}),
        ("0.19.2", "gradient_clipping", {"default": 0.0}),
        ("0.19.3", "gradient_clipping", {"default": 1.0}),
        ("0.19.2", "bf16.check_grad_overflow", {"default": False}),
        ("0.19.3", "bf16.check_grad_overflow", {"default": True}),
        ("0.19.4", "zero_optimization.offload_optimizer.pin_memory", {"default": False}),
        ("0.19.5", "zero_optimization.offload_optimizer.pin_memory", {"default": True}),
        ("0.19.5", "zero_optimization.reduce_bucket_size", {"minimum": 0, "exclusive_minimum": None}),
        ("0.19.6", "zero_optimization.reduce_bucket_size", {"minimum": None, "exclusive_minimum": 0}),
        ("0.14.0", "zero_optimization.sub_group_size", {"minimum": 0, "types": ("int",), "default": 1_000_000_000}),
        ("0.14.5", "zero_optimization.offload_param.nvme_path", {"default": None, "types": ("str", "null")}),
        ("0.14.5", "zero_optimization.stage3_max_live_parameters", {"aliases": ("max_live_parameters",)}),
        ("0.14.5", "zero_optimization.cpu_offload", {"replaced_by": ("zero_optimization.offload_optimizer",)}),
        ("0.14.0", "communication_data_type", {"choices": ("bfp16", "fp16", "fp32")}),
        ("0.14.1", "communication_data_type", {"choices": ("bf16", "fp16", "fp32")}),
        ("0.17.0", "fp16.loss_scale", {"default": 0, "types": ("float",)}),
        ("0.17.0", "bf16", {"aliases": ("bfloat16",)}),
        ("0.19.6", "sparse_attention.global_block_indices", {"default": [0], "types": ("list",)}),
    ],
)
def test_what_a_version_says_of_a_key(version, path, expected):
    key = load_keys(version).get(path)
    assert {name: getattr(key, name) for name in expected} == expected


def test_precision_sections_refuse_unknown_keys_from_0_17_1_on():
    for section in ("bf16", "fp16"):
        assert load_keys("0.17.0").section_policy(section) == "ignored"
        assert load_keys("0.17.1").section_policy(section) == "refused"


def test_keys_are_refused_at_sight_from_0_19_7_on():
    assert not load_keys("0.19.6").removed
    assert load_keys("0.19.7").removed == {
        "compression_training",
        "nebula",
        "quantize_training",
        "sparse_attention",
        "zero_optimization.mics_hierarchical_params_gather",
        "zero_optimization.mics_shard_size",
    }
    for path in ("amp", "elasticity", "progressive_layer_drop.theta", "zero_optimization.zeropp_loco_param"):
        assert load_keys("0.19.7").get(path) is not None
        assert load_keys("0.19.8").get(path) is None


def test_keys_that_only_a_running_job_reads(keys):
    assert keys.get("data_efficiency.data_sampling.dynamic_batching.metrics_path").types == ("str",)
    assert keys.get("data_efficiency.data_sampling.curriculum_learning.data_cluster_path").types == ("str",)


def test_stage(keys):
    stage = keys.get("zero_optimization.stage")
    assert stage.types == ("int",)
    assert stage.choices == (0, 1, 2, 3)
    assert stage.default == 0 and stage.has_default
    assert stage.reader == "runtime/zero/config.py:DeepSpeedZeroConfig"
    assert stage.name == "stage"


def test_limits(keys):
    assert keys.get("zero_optimization.reduce_bucket_size").exclusive_minimum == 0
    assert keys.get("zero_optimization.allgather_bucket_size").minimum == 0
    ratio = keys.get("zero_optimization.offload_optimizer.ratio")
    assert (ratio.minimum, ratio.maximum, ratio.default) == (0.0, 1.0, 1.0)
    topk = keys.get("zero_optimization.zenflow.topk_ratio")
    assert (topk.exclusive_minimum, topk.exclusive_maximum) == (0.0, 1.0)
    assert keys.get("train_batch_size").exclusive_minimum == 0


@pytest.mark.parametrize(
    ("path", "default"),
    [
        ("gradient_clipping", 1.0),
        ("bf16.check_grad_overflow", True),
        ("bf16.immediate_grad_update", False),
        ("steps_per_print", None),
        ("zero_optimization.offload_optimizer.pin_memory", True),
        ("zero_optimization.overlap_comm", None),
        ("zero_optimization.stage3_param_persistence_threshold", 100_000),
        ("zero_optimization.sub_group_size", 1_000_000_000),
        ("activation_checkpointing.partition_activations", False),
        ("data_efficiency.seed", 1234),
        ("pipeline.stages", "auto"),
        ("fp16.initial_scale_power", 16),
    ],
)
def test_defaults(keys, path, default):
    key = keys.get(path)
    assert key.has_default
    assert key.default == default


def test_what_has_no_default(keys):
    assert not keys.get("sequence_parallel_size").has_default
    assert not keys.get("zero_optimization").has_default


def test_types_and_choices(keys):
    assert keys.get("train_micro_batch_size_per_gpu").types == ("int", "null")
    assert keys.get("zero_optimization.offload_optimizer.nvme_path").types == ("str", "null")
    assert keys.get("zero_optimization.offload_optimizer").types == ("dict", "null")
    assert keys.get("zero_optimization.offload_param.device").choices == ("cpu", "none", "nvme")
    assert keys.get("compile.passes").types == ("list", "null")
    assert keys.get("compile.passes").choices == ("autosp", "autotp", "z1", "z3")
    communication = keys.get("communication_data_type")
    assert communication.choices == ("bf16", "fp16", "fp32") and communication.any_case
    assert "bf16" in keys.get("data_types.grad_accum_dtype").choices
    assert keys.get("expert_parallel.comm_backend").choices == ("comm", "deepep")


def test_aliases_lead_to_the_canonical_key(keys):
    live = keys.get("zero_optimization.stage3_max_live_parameters")
    assert live.aliases == ("max_live_parameters",)
    assert keys.get("zero_optimization.max_live_parameters") is live
    assert keys.get("bfloat16.enabled") is keys.get("bf16.enabled")
    assert keys.canonical("bfloat16.nonsense") == "bf16.nonsense"
    assert keys.get("zero_optimization.nonsense") is None


def test_deprecated_keys_say_what_to_use(keys):
    old = keys.get("zero_optimization.cpu_offload")
    assert old.deprecated
    assert old.replaced_by == ("zero_optimization.offload_optimizer",)
    gather = keys.get("zero_optimization.stage3_gather_fp16_weights_on_model_save")
    assert gather.replaced_by == ("zero_optimization.stage3_gather_16bit_weights_on_model_save",)


def test_sections(keys):
    assert keys.section_policy("") == "ignored"
    assert keys.section_policy("zero_optimization") == "refused"
    assert keys.section_policy("zero_optimization.offload_optimizer") == "refused"
    assert keys.section_policy("bfloat16") == "refused"
    assert keys.section_policy("timers") == "ignored"
    assert keys.section_policy("timers.throughput") == "refused"
    assert keys.section_policy("activation_checkpointing") == "ignored"
    assert keys.section_policy("optimizer") == "ignored"
    assert keys.section_policy("optimizer.params") == "refused"
    assert keys.section_policy("tensor_parallel.partition_config") == "free"
    with pytest.raises(ValueError, match="no section"):
        keys.section_policy("zero_optimization.stage")
    assert {"", "fp16", "aio", "checkpoint.writer"} <= keys.known_sections


def test_children(keys):
    assert [key.name for key in keys.children("aio")] == [
        "block_size",
        "intra_op_parallelism",
        "overlap_events",
        "queue_depth",
        "single_submit",
        "use_gds",
    ]
    assert {"zero_optimization", "train_batch_size", "fp16"} <= {key.path for key in keys.children("")}
    assert keys.children("bfloat16") == keys.children("bf16")
    assert keys.children("nonsense") == ()


def test_removed_keys(keys):
    assert {"amp", "sparse_attention", "elasticity", "zero_optimization.mics_shard_size"} <= keys.removed
    assert len(keys.removed) == 14


def test_optimizers_and_schedulers(keys):
    adamw = keys.optimizers["adamw"]
    assert {"lr", "betas", "eps", "weight_decay", "torch_adam", "adam_w_mode", "fp32_optimizer_states"} <= set(
        adamw.names
    )
    assert "momentum" not in adamw.names and "max_grad_norm" not in adamw.names
    assert adamw.unknown == "refused"
    assert "torch_adam" in adamw.by_place["device"] and "capturable" not in adamw.by_place["device"]
    assert {name for name, places in keys.optimizers.items() if "host" in places.by_place} == {
        "adagrad",
        "adam",
        "adamw",
        "lion",
    }
    # FusedLamb takes it, the engine raises before.
    assert "max_grad_norm" not in keys.optimizers["lamb"].names
    assert keys.get("optimizer.params.max_grad_norm").replaced_by == ("gradient_clipping",)
    assert keys.optimizers["muon"].unknown == "ignored"
    assert "per_head_muon" in keys.optimizers["muon"].names
    cosine = keys.schedulers["WarmupCosineLR"]
    assert cosine.required == ("total_num_steps",)
    assert "warmup_max_lr" not in cosine.names
    assert keys.schedulers["WarmupLR"].required == ()
    assert keys.get("scheduler.params.warmup_max_lr").types == ("float", "list", "null")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("zero_optimisation", "zero_optimization"),
        ("gradient_accumulation_step", "gradient_accumulation_steps"),
        ("bf_16", "bf16"),
        ("stage", "zero_optimization.stage"),
        ("zero_optimization.stag", "zero_optimization.stage"),
        ("zero_optimization.max_live_parameter", "zero_optimization.stage3_max_live_parameters"),
        ("activation_checkpointing.partitioned_activations", "activation_checkpointing.partition_activations"),
    ],
)
def test_suggestions(keys, typed, meant):
    assert keys.get(typed) is None
    assert keys.suggestions(typed)[0] == meant
