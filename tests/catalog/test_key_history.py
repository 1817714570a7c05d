from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from dsgen.catalog import deepspeed_keys
from dsgen.catalog.deepspeed_keys import known_versions, load_keys
from dsgen.catalog.key_history import (
    default_changes,
    last_version,
    next_version,
    renamed_from,
    renamed_to,
)

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = Path(deepspeed_keys.__file__).parent / "data" / "deepspeed"


def test_shipped_history_is_that_of_the_shipped_versions():
    spec = importlib.util.spec_from_file_location("derive", ROOT / "tools" / "derive_deepspeed_versions.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    files = tool.version_files(SHIPPED)
    assert [file.stem for file in files] == list(known_versions())
    derived = tool.as_text(tool.history([json.loads(file.read_text(encoding="utf-8")) for file in files]))
    assert derived == (SHIPPED / "history.json").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "first", "last"),
    [
        ("zero_optimization.stage", "0.14.0", None),
        ("comet", "0.14.3", None),
        ("aio.use_gds", "0.15.0", None),
        ("sequence_parallel_size", "0.15.0", None),
        ("zero_optimization.stage3_module_granularity_threshold", "0.16.0", None),
        ("tensor_parallel.autotp_size", "0.16.4", None),
        ("torch_autocast", "0.17.2", None),
        ("zero_optimization.leaf_module", "0.18.0", None),
        ("gradient_allreduce_op", "0.19.6", None),
        ("nebula", "0.14.0", "0.19.6"),
        ("sparse_attention.mode", "0.14.0", "0.19.6"),
        ("zero_optimization.mics_shard_size", "0.14.0", "0.19.6"),
        ("zero_optimization.zeropp_loco_param", "0.16.2", "0.19.7"),
        ("amp", "0.14.0", "0.19.7"),
        ("compile", "0.16.6", None),  # not from 0.14.4 on
        ("compile.backend", "0.14.0", "0.14.3"),
        ("nonsense", None, None),
    ],
)
def test_first_and_last_version(path, first, last):
    assert (next_version(path, "0.14.0"), last_version(path)) == (first if first != "0.14.0" else None, last)


def test_default_changes():
    assert default_changes("gradient_clipping") == (("0.19.3", 0.0, 1.0),)
    assert default_changes("steps_per_print") == (("0.15.2", 10, None),)
    assert default_changes("zero_optimization.offload_param.pin_memory") == (("0.19.5", False, True),)
    # 0.17.1 read bf16 with another default again.
    assert default_changes("bf16.immediate_grad_update") == (("0.16.5", False, True), ("0.17.1", True, False))
    assert default_changes("zero_optimization.stage") == ()
    assert default_changes("nonsense") == ()


@pytest.mark.parametrize(
    ("old", "new", "since"),
    [
        ("aio.thread_count", "aio.intra_op_parallelism", "0.16.4"),
        ("seq_parallel_comm_data_type", "seq_parallel_communication_data_type", "0.16.5"),
    ],
)
def test_renames(old, new, since):
    before = known_versions()[known_versions().index(since) - 1]
    assert (last_version(old), next_version(new, "0.14.0")) == (before, since)
    assert (renamed_to(old, before), renamed_to(old, since), renamed_to(old, "0.19.8")) == (None, new, new)
    assert (renamed_from(new, "0.14.0"), renamed_from(new, before), renamed_from(new, since)) == (old, old, None)
    assert load_keys(before).get(old).default == load_keys(since).get(new).default


def test_what_was_never_renamed():
    assert renamed_to("amp", "0.19.8") is None
    assert renamed_to("aio.intra_op_parallelism", "0.19.8") is None
    assert renamed_from("aio.thread_count", "0.14.0") is None
    assert renamed_from("compile", "0.15.0") is None
