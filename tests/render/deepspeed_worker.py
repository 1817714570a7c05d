"""Parses configs with the real DeepSpeedConfig, one JSON request per line, in a process of its own.

Request: {"config": {...}, "world_size": n}. Answer: {"parsed": {...}} or {"error": "..."}.
"""

from __future__ import annotations

import enum
import json
import os
import sys
import tempfile
from typing import Any

# DeepSpeed writes its log to standard output; the answers need a channel of their own.
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
os.environ["DS_ACCELERATOR"] = "cpu"

import deepspeed.comm as dist  # noqa: E402
from deepspeed.runtime.config import DeepSpeedConfig  # noqa: E402


def plain(value: Any, depth: int = 0) -> Any:
    """The value as comparable JSON: every attribute of every parsed section."""
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, dict):
        return {str(k): plain(v, depth + 1) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v, depth + 1) for v in value]
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if depth < 6 and hasattr(value, "__dict__"):
        return {k: plain(v, depth + 1) for k, v in vars(value).items()}
    return str(value)


for line in sys.stdin:
    request = json.loads(line)
    world_size = request["world_size"]
    dist.get_rank = lambda: 0
    dist.get_world_size = lambda *_, n=world_size: n
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(request["config"], file)
        file.flush()
        try:
            parsed = vars(DeepSpeedConfig(file.name))
            # the dictionary as read is there whatever DeepSpeed makes of it
            answer = {"parsed": {k: plain(v) for k, v in parsed.items() if k != "_param_dict"}}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps(answer), file=answers, flush=True)
