"""Inputs that no person writes: there is always an answer, soon, and never a traceback."""

from __future__ import annotations

import json
import random
import resource
import time
from pathlib import Path

import pytest

from dsgen.lint.lint import Linted, lint_bytes, lint_file
from dsgen.lint.options import Options

from ..conftest import RECIPES

CONFIG = json.dumps(
    {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 4,
        "gradient_clipping": 1.0,
        "fp16": {"enabled": False, "loss_scale": 0},
        "bf16": {"enabled": True},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-5, "betas": [0.9, 0.95], "torch_adam": True}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10, "total_num_steps": 100}},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "nvme", "nvme_path": "/x", "pin_memory": True},
            "offload_param": {"device": "cpu"},
            "stage3_max_live_parameters": 1e9,
            "overlap_comm": True,
        },
        "activation_checkpointing": {"partition_activations": True},
        "wandb": {"enabled": True},
        "steps_per_print": 10,
    },
    indent=1,
).encode()
ACCELERATE = b"""compute_environment: LOCAL_MACHINE
deepspeed_config: {zero_stage: 2, gradient_clipping: 1.0, offload_optimizer_device: cpu}
distributed_type: DEEPSPEED
mixed_precision: bf16
num_processes: 8
"""
HOSTFILE = b"w0 slots=8\nw1 slots=8\n"
ENVIRONMENT = b"HCCL_CONNECT_TIMEOUT=1800\nPATH=/usr/bin\n"
PIECES = (
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b'"',
        b"'",
        b":",
        b",",
        b"\n",
        b"//",
        b"/*",
        b"#",
        b"'''",
        b"\\",
        b"\x00",
        b"\xff",
        b"\xef\xbb\xbf",
    ),
    *(
        b"1e999",
        b"-1",
        b"0",
        b"1e-400",
        b"9" * 5000,
        b"NaN",
        b"-Infinity",
        b"null",
        b"true",
        b"True",
        b'"auto"',
        b"[]",
        b"{}",
    ),
    *(
        b"&a",
        b"*a",
        b"!!python/object:os.system",
        b"<<: ",
        b"\xe2\x80\xa8",
        b"\xed\xa0\x80",
        b'"\\ud800"',
        b"slots=",
        b"=",
    ),
)


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Some bytes cut, changed, repeated, or put in."""
    for _ in range(chance.randrange(1, 6)):
        at, to = sorted((chance.randrange(len(data) + 1), chance.randrange(len(data) + 1)))
        kind = chance.randrange(7)
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            data = data[:at] + chance.choice(PIECES) + data[at:]
        elif kind == 2:
            data = data[:at] + data[to:] if to - at < 200 else data
        elif kind == 3:
            data = data[:to] + data[at:to] + data[to:]
        elif kind == 4 and data:
            where = chance.randrange(len(data))
            data = data[:where] + bytes([chance.randrange(256)]) + data[where + 1 :]
        elif kind == 5:
            data = data.replace(*(chance.choice(PIECES) for _ in range(2)), 1)
        else:
            words = data.split(b'"')
            chance.shuffle(words)
            data = b'"'.join(words) if chance.random() < 0.2 else data
    return data


def linted(data: bytes, file: str) -> Linted:
    found = lint_bytes(data, file, Options())
    assert found is not None
    assert found.document is not None or [each.code for each in found.findings] == ["DOC001"]
    for finding in found.findings:
        assert finding.message and finding.position.line >= 1 and finding.position.column >= 1
    return found


@pytest.mark.parametrize("seed", range(20))
def test_mutated_files(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    recipe = (RECIPES / "13b-zero2.yaml").read_bytes()
    sources = [(CONFIG, "c.json")] * 12 + [(CONFIG, "c.yaml"), (ACCELERATE, "a.yaml"), (HOSTFILE, "hostfile")]
    sources += [(ENVIRONMENT, ".deepspeed_env")] + [(recipe, "r.yaml")] * 2
    slowest = 0.0
    for _ in range(100):
        data, name = chance.choice(sources)
        path = tmp_path / name
        path.write_bytes(mutated(data, chance))
        start = time.process_time()
        found = lint_file(path, Options())
        slowest = max(slowest, time.process_time() - start)
        assert found is not None
    assert slowest < 2


@pytest.mark.parametrize(
    ("data", "file"),
    [
        (b"[" * 10_000 + b"]" * 10_000, "c.json"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "c.json"),
        (b"{a:" * 10_000, "c.yaml"),
        (b"[" * 10_000, "c.yaml"),
        (b'{"train_batch_size": ' + b"9" * 100_000 + b"}", "c.json"),
        (b'{"train_batch_size": 1e' + b"9" * 1000 + b"}", "c.json"),
        ('{"train_batch_size": 1}'.encode("utf-16"), "c.json"),
        ('{"train_batch_size": 1}'.encode("utf-32"), "c.json"),
        ('{"a": "ü"}'.encode("latin-1"), "c.json"),
        (
            b"a: &a [x, x, x, x, x, x, x, x, x]\n"
            + b"".join(
                b"%c: &%c [%s]\n" % (name, name, b",".join(b"*%c" % (name - 1) for _ in range(9)))
                for name in range(98, 110)
            ),
            "c.yaml",
        ),
        (b"", "c.json"),
        (b"", "c.yaml"),
        (b"", "hostfile"),
        (b"\x00" * 1000, "c.json"),
        (b'"' * 100_001, "c.json"),
        (b"/*" * 100_000, "c.json"),
        (b"//\n" * 100_000, "c.json"),
        (b"'''" * 50_001, "c.json"),
        (b"a\n" * 200_000, "hostfile"),
        (b"A=1\n" * 200_000, ".deepspeed_env"),
    ],
    ids=range(20),
)
def test_absurd_files(data: bytes, file: str) -> None:
    start = time.process_time()
    linted(data, file)
    assert time.process_time() - start < 5


def test_a_file_of_100_megabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "c.json"
    with path.open("wb") as stream:
        stream.write(b'{"a": "')
        stream.truncate(100 * 2**20)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = lint_file(path, Options())
    assert found is not None and "larger than 4 MiB" in found.findings[0].message
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000


def test_many_unknown_keys_are_not_all_listed() -> None:
    data = json.dumps({f"key{number}": number for number in range(50_000)}).encode()
    start = time.process_time()
    found = linted(data, "c.json")
    assert time.process_time() - start < 5
    assert sum(finding.code == "KEY001" for finding in found.findings) == 51
    assert any("more than 50" in finding.message for finding in found.findings)


def test_special_files_are_no_input(tmp_path: Path) -> None:
    for path in (Path("/dev/zero"), tmp_path, tmp_path / "nothing"):
        found = lint_file(path, Options())
        assert found is not None and found.document is None
