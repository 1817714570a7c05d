"""Whatever a stranger writes as a value of a key that DeepSpeed knows: rules judge it, and none fails on it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsgen.catalog.deepspeed_keys import load_keys

from .linted import SOUND, lint_text

KEYS = load_keys()
PATHS = sorted(key.path for key in KEYS)
PARAMETERS = sorted(
    {f"optimizer.params.{name}" for params in KEYS.optimizers.values() for name in params.names}
    | {f"scheduler.params.{name}" for params in KEYS.schedulers.values() for name in params.names}
)
TYPES: dict[str, list[Any]] = {
    "optimizer.type": [*KEYS.optimizers, "SGD", "Adam", "Muon", "OneBitAdam", ""],
    "scheduler.type": [*KEYS.schedulers, "StepLR", "constant", ""],
    "zero_optimization.stage": [0, 1, 2, 3, "3", True, 2.0],
}

numbers = st.sampled_from([0, 1, -1, 2, 3, 0.5, -0.5, 1e-5, 1e308, 2**63, 10**400, -(10**400), 10.0, 64])
words = st.sampled_from(
    ["auto", "", "true", "cpu", "nvme", "none", "2", "1e5", "fp16", "bf16", "/x", "~", "a.b", "x" * 99]
)
scalars = st.one_of(st.none(), st.booleans(), numbers, words, st.text(max_size=5))
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4) | words, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def settings_of_keys(draw: st.DrawFn) -> dict[str, Any]:
    """Some of DeepSpeed's keys in SOUND, with fitting values and with any others."""
    config: dict[str, Any] = json.loads(json.dumps(SOUND)) if draw(st.booleans()) else {}
    for _ in range(draw(st.integers(1, 8))):
        path = draw(st.sampled_from([*TYPES, *PATHS, *PARAMETERS]))
        value = draw(st.sampled_from(TYPES[path]) if path in TYPES and draw(st.booleans()) else values)
        section = config
        *parents, name = path.split(".")
        for parent in parents:
            inner = section.get(parent)
            if not isinstance(inner, dict):
                inner = section[parent] = {}
            section = inner
        section[name] = value
    return config


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    settings_of_keys(),
    st.sampled_from([{}, {"world_size": 2}, {"world_size": 7, "framework": "native"}, {"framework": "transformers"}]),
    st.sampled_from([{}, {"device": "cpu"}, {"device": "ascend-910a", "model": "llama-2-7b"}]),
    st.sampled_from([{}, {"client_optimizer": "SGD"}, {"client_optimizer": "none"}]),
)
def test_every_rule_has_an_answer(
    config: dict[str, Any], job: dict[str, Any], machine: dict[str, Any], script: dict[str, Any]
) -> None:
    for finding in lint_text(json.dumps(config), "ds_config.json", **job, **machine, **script):
        assert finding.message
        assert finding.position.line >= 1
