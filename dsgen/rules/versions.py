"""Defaults that changed from one version of DeepSpeed to another, in a config that should mean one thing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsgen.catalog.deepspeed_keys import load_keys
from dsgen.catalog.key_history import default_changes
from dsgen.findings import Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, lookup, shown

_OFFLOAD = ("zero_optimization.offload_optimizer", "zero_optimization.offload_param")


@rule("VER001", Severity.WARNING)
def clipping_is_said(view: View) -> Iterator[Problem]:
    """No `gradient_clipping`: DeepSpeed clips to a norm of 1.0 from 0.19.3 on, and did not clip before.

    The same file trains otherwise after an update (runtime/constants.py, GRADIENT_CLIPPING_DEFAULT). A trainer fills in
    only what says `auto`: without the key it is DeepSpeed's default that counts, whatever `max_grad_norm` says.

    Example:
        # whole file
        {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}

    Instead:
        {"gradient_clipping": 1.0}

    Since: DeepSpeed 0.14
    """
    key = view.keys.get("gradient_clipping")
    if view.kind != "ds_config" or "gradient_clipping" in view.config or key is None or not view.config:
        return
    changed = default_changes("gradient_clipping")[-1][0]
    here = f"clips to a norm of 1.0, versions before {changed} do not clip"
    if not key.default:
        here = f"does not clip, versions from {changed} on clip to a norm of 1.0"
    yield Problem(
        path="gradient_clipping",
        message=f"gradient_clipping is not said: DeepSpeed {view.deepspeed} {here}",
        help="write the norm that is meant, 0 for none" + (", or auto" if view.framework == "transformers" else ""),
        severity=Severity.INFO if view.framework == "transformers" else None,
    )


@rule("VER002", Severity.INFO)
def pinning_is_said(view: View) -> Iterator[Problem]:
    """Offload to the host without `pin_memory`: that memory is locked from DeepSpeed 0.19.5 on, and was not before.

    Locked memory cannot be swapped out, and a container or a batch system may limit it. Copies to the device are faster
    from it.

    Example:
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}

    Instead:
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}}}

    Since: DeepSpeed 0.14
    """
    if view.kind != "ds_config" or not view.stage:
        return
    for path, device in zip(_OFFLOAD, (view.offload_optimizer, view.offload_parameters), strict=True):
        section, key = lookup(view.config, path), view.keys.get(f"{path}.pin_memory")
        if device not in ("cpu", "nvme") or not isinstance(section, Mapping) or "pin_memory" in section or key is None:
            continue
        changed = default_changes(f"{path}.pin_memory")[-1][0]
        here = f"locks the host memory, versions before {changed} do not"
        if not key.default:
            here = f"does not lock the host memory, versions from {changed} on do"
        yield Problem(
            path=path,
            message=f"pin_memory is not said: DeepSpeed {view.deepspeed} {here}",
            help="write true for faster copies, false where locked memory is limited",
            on_key=True,
        )


@rule("VER003", Severity.INFO)
def defaults_are_said(view: View) -> Iterator[Problem]:
    """A setting that is left to a default which is another one in DeepSpeed 0.19.8: an update changes it.

    `bf16.check_grad_overflow` is true from 0.19.3 on: a step with an infinite gradient is skipped instead of taken.
    `steps_per_print` was 10 before 0.15.2; since then the engine prints no line of its own accord.

    Example:
        # whole file
        {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "bf16": {"enabled": true},
         "zero_optimization": {"stage": 2}}

    Instead:
        # whole file
        {"train_micro_batch_size_per_gpu": 1, "gradient_clipping": 1.0, "steps_per_print": 10,
         "bf16": {"enabled": true, "check_grad_overflow": true}, "zero_optimization": {"stage": 2}}

    Options: --deepspeed 0.19.2
    Since: DeepSpeed 0.14
    """
    if view.kind != "ds_config" or not view.config:
        return
    newest = load_keys()
    paths = ["bf16.check_grad_overflow"] if view.precision == "bf16" else []
    if view.framework == "native":
        paths.append("steps_per_print")  # accelerate sets it
    for path in paths:
        key, later = view.keys.get(path), newest.get(path)
        section = lookup(view.config, path.rpartition(".")[0]) if "." in path else view.config
        if key is None or later is None or not isinstance(section, Mapping) or key.name in section:
            continue
        if key.default != later.default:
            yield Problem(
                path=(),
                message=f"{path} is not said: it is {shown(key.default)} in DeepSpeed {view.deepspeed}, and "
                f"{shown(later.default)} in {newest.version}",
                help="write it, so that an update changes nothing",
            )
