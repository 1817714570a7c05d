"""Keys of ds_config.json: known, in the right place, of the right type, and not said twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dsgen.catalog.deepspeed_keys import known_versions
from dsgen.catalog.key_history import last_version
from dsgen.catalog.lookup import alike, nearest
from dsgen.documents.positions import Path
from dsgen.findings import Edit, Severity
from dsgen.rules.key_values import (
    ADDED_UP,
    default_help,
    explained,
    is_interval,
    is_same,
    meant_value,
    taken_as,
    value_problem,
    written,
)
from dsgen.rules.registry import Problem, rule
from dsgen.rules.unknown_keys import (
    LAUNCHER_KEYS,
    OWN_RULES,
    canonical_path,
    key_at,
    move,
    near_elsewhere,
    rename,
    unknown_keys,
    with_stage,
)
from dsgen.rules.view import View, keys_of, shown

WITHOUT_EFFECT: Mapping[str, str] = {
    "activation_checkpointing": "the models of train.py do not call DeepSpeed's checkpoint function; write "
    "`activation_checkpointing` at the top of the recipe",
    "autotuning": "nothing here starts DeepSpeed's tuner",
    "compile": "train.py does not call engine.compile()",
    "data_efficiency": "train.py reads the data itself",
    "dataloader_drop_last": "train.py reads the data itself",
    "disable_allgather": "DeepSpeed does not read it",
    "pipeline": "the models of train.py are no pipelines",
    "vocabulary_size": "DeepSpeed does not read it",
}
"""Keys that DeepSpeed knows and that change nothing in the rendered train.py: key -> why."""


_MEANT = {"load_universal_checkpoint": "checkpoint.load_universal", "universal_checkpoint": "checkpoint.load_universal"}
"""Keys at the top level that people write -> the path of what they mean, where the name tells little of it."""


@rule("KEY001")
def key_is_known(view: View) -> Iterator[Problem]:
    """A key that DeepSpeed does not know.

    At the top level and in the sections that DeepSpeed reads by hand it is ignored without a word (`zero_optimisation`
    trains at stage 0); in the others DeepSpeed refuses to start.

    Example:
        {"zero_optimisation": {"stage": 3}}

    Instead:
        {"zero_optimization": {"stage": 3}}

    Since: DeepSpeed 0.14 (inside `fp16` and `bf16` it was ignored up to 0.17.0)
    """
    for unknown in unknown_keys(view):
        if unknown.is_comment or unknown.is_launchers or unknown.belongs_to:
            continue
        near = nearest(unknown.name, view.own_names.get(unknown.section, ())) or unknown.near
        fix = rename(view, unknown)
        near = (str(fix[0].to[-1]),) if fix else near
        if not unknown.section and unknown.name in _MEANT:
            near = (_MEANT[unknown.name],)
        elif unknown.comes_with is not None and unknown.renamed is None:
            near = ()
        elif near and alike(unknown.name, near[0]):
            near = near[:1]
        elif not near:
            near = tuple(map(view.spell, near_elsewhere(view.deepspeed, unknown.name)))
        otherwise = f"remove it, or take DeepSpeed {unknown.comes_with}" if unknown.comes_with else "remove it"
        yield Problem(
            path=unknown.path,
            message=f"DeepSpeed {view.deepspeed} knows no key {unknown.name!r} {unknown.where}: {unknown.effect}"
            + unknown.history,
            help=f"did you mean {' or '.join(near)}?" if near else otherwise,
            on_key=True,
            fix=fix,
        )


@rule("KEY008", Severity.INFO)
def comment_is_no_setting(view: View) -> Iterator[Problem]:
    """A key that is meant as a comment.

    JSON has no comments, and DeepSpeed ignores such a key where it ignores unknown keys: at the top level and in the
    sections that it reads by hand. In the others it would refuse to start.

    Example:
        {"_comment": "as in the first run", "gradient_clipping": 0.5}

    Instead:
        {"gradient_clipping": 0.5}

    Since: DeepSpeed 0.14
    """
    for unknown in unknown_keys(view):
        if unknown.is_comment and not unknown.name.startswith("$"):
            yield Problem(
                path=unknown.path,
                message=f"{unknown.name} is taken for a comment: DeepSpeed ignores it",
                help="DeepSpeed's reader takes `//` and `#` comments too; readers of plain JSON do not",
                on_key=True,
            )


@rule("KEY009")
def key_is_in_its_section(view: View) -> Iterator[Problem]:
    """A key that DeepSpeed knows in another section.

    Where it stands it is ignored without a word (`offload_optimizer` at the top level leaves every state on the
    device), or DeepSpeed refuses it.

    Example:
        {"offload_optimizer": {"device": "cpu"}, "zero_optimization": {"stage": 2}}

    Instead:
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}

    Since: DeepSpeed 0.14
    """
    for unknown in unknown_keys(view):
        if unknown.belongs_to and not unknown.is_launchers:
            places = " or ".join(view.spell(path) for path in unknown.belongs_to[:3])
            yield Problem(
                path=unknown.path,
                message=f"{unknown.name} does not belong {unknown.where}: {unknown.effect}",
                help=f"write it as {places}{with_stage(view, unknown)}",
                on_key=True,
                fix=move(view, unknown),
            )


@rule("KEY010")
def launcher_is_told_elsewhere(view: View) -> Iterator[Problem]:
    """A setting of the launcher in the config, where DeepSpeed does not read it.

    The job starts with the launcher's own default: all devices of this machine, or those of /job/hostfile. Such
    settings stand on the command line: `deepspeed --num_gpus 8 train.py`.

    Example:
        {"num_gpus": 8, "gradient_clipping": 0.5}

    Instead:
        {"gradient_clipping": 0.5}

    Since: DeepSpeed 0.14
    """
    for unknown in unknown_keys(view):
        if unknown.is_launchers:
            yield Problem(
                path=unknown.path,
                message=f"{unknown.name} is a setting of the launcher: {unknown.effect}",
                help=f"say it on the command line: {LAUNCHER_KEYS[unknown.name]}",
                on_key=True,
            )


@rule("KEY002")
def key_is_not_removed(view: View) -> Iterator[Problem]:
    """A key that DeepSpeed no longer has: its presence alone is an error, whatever its value.

    DeepSpeed looks for the names of what it has dropped and raises an error (runtime/config.py), also for a section
    that says `"enabled": false`.

    Example:
        {"elasticity": {"enabled": false}, "gradient_clipping": 0.5}

    Instead:
        {"gradient_clipping": 0.5}

    Since: DeepSpeed 0.19.7, more of them from 0.19.8
    """
    keys = view.keys
    for path, _ in keys_of(view.config):
        canonical = canonical_path(keys, path)
        if canonical is not None and canonical in keys.removed:
            last = last_version(canonical)
            gone = "it no longer has"
            if last is not None:
                gone = f"is gone since {known_versions()[known_versions().index(last) + 1]}"
            yield Problem(
                path=path,
                message=f"DeepSpeed {view.deepspeed} refuses to start with {path[-1]}, which {gone}",
                help=_INSTEAD_OF_REMOVED.get(canonical, "remove it"),
                on_key=True,
            )


_INSTEAD_OF_REMOVED = {
    "amp": "remove it; take fp16, bf16 or torch_autocast instead",
    "compression_training": "remove it; DeepSpeed trains without compression",
    "curriculum_learning": "write it as data_efficiency.data_sampling.curriculum_learning",
    "elasticity": "remove it, and give train_batch_size, train_micro_batch_size_per_gpu and "
    "gradient_accumulation_steps yourself",
    "nebula": "remove it; checkpoints are saved by torch.save",
    "sparse_gradients": "remove it; gradients of an embedding with sparse=True are reduced sparsely without it",
    "zero_optimization.zeropp_loco_param": "remove it; quantized gradients go without its error feedback",
}
"""Key that DeepSpeed refuses -> what it says to do instead (runtime/config.py)."""


@rule("KEY003")
def value_is_right(view: View) -> Iterator[Problem]:
    """A value of a type, range or set that DeepSpeed does not take.

    DeepSpeed refuses it, or fails on it late: `"gradient_clipping": "1.0"` is a TypeError at the first optimizer step,
    after the model is loaded. Where DeepSpeed takes it all the same, as the text "2" for a number in the sections that
    pydantic reads, the finding is a warning.

    Example:
        {"gradient_clipping": "1.0"}

    Instead:
        {"gradient_clipping": 1.0}

    Since: DeepSpeed 0.14
    """
    keys = view.keys
    not_finite = view.not_finite
    for path, value in keys_of(view.config):
        key = key_at(keys, path)
        if (path[:2] in OWN_RULES and len(path) > 2) or value == "auto":
            continue
        problem = value_problem(key, value)
        if problem is None or path in not_finite:
            continue
        name = view.spell(path).rpartition(".")[2]
        taken = taken_as(keys, key, value) if key is not None and view.kind == "ds_config" else None
        if key is not None and view.kind == "ds_config" and is_interval(key, value):
            yield Problem(
                path=path,
                message=f"{name}: {problem}: DeepSpeed takes it, and prints at the steps that are multiples of it",
                help=f"write {max(1, round(value))}",
                severity=Severity.WARNING,
            )
        elif taken is None:
            if key is not None and key.types == ("bool",) and isinstance(value, str):
                if key.path in ADDED_UP:
                    problem += ": DeepSpeed stops with a TypeError"
                else:
                    problem += ": where DeepSpeed reads it by hand, any text counts as true"
            meant = meant_value(key, value) if key is not None else None
            sure = meant is not None and view.kind == "ds_config" and is_same(value, meant)
            yield Problem(
                path=path,
                message=f"{name}: {problem}",
                help=default_help(key) if meant is None else f"write {written(meant)}{explained(key, value)}",
                fix=(Edit(action="set", path=path, value=meant),) if sure else (),
            )
        else:
            yield Problem(
                path=path,
                message=f"{name}: {problem}: DeepSpeed takes it as {shown(taken)}",
                help=f"write {shown(taken)}",
                severity=Severity.INFO if isinstance(value, str) and not isinstance(taken, bool) else Severity.WARNING,
                fix=(Edit(action="set", path=path, value=taken),),
            )


@rule("KEY004")
def raw_key_agrees(view: View) -> Iterator[Problem]:
    """A raw key says what a field of the recipe decides, and says it differently.

    Everything that dsgen derives (buckets, memory, ranks) follows the field, so the two must not part.

    Example (recipe):
        gradient_clipping: 0.5
        deepspeed: {gradient_clipping: 2.0}

    Instead:
        gradient_clipping: 2.0

    Since: dsgen 0.1
    """
    keys = view.keys
    for path, value in keys_of(view.raw):
        canonical = canonical_path(keys, path)
        if canonical is None or value_problem(keys.get(canonical), value) is not None:
            continue  # other rules say so
        decided = view.decided.get(canonical)
        if decided is not None and value != decided.value:
            yield Problem(
                path=path,
                message=f"the raw key says {shown(value)}, {decided.field} decides it"
                + (f" as {shown(decided.value)}" if decided.value is not None else ""),
                help=f"write {decided.field} instead",
            )
        inside = sorted({each.field for name, each in view.decided.items() if name.startswith(f"{canonical}.")})
        if inside and not isinstance(value, Mapping):
            yield Problem(
                path=path,
                message=f"the raw key replaces the section that {', '.join(inside)} belong to",
                help="name the keys of the section that are to change",
            )


@rule("KEY005", ds_config=Severity.WARNING)
def key_is_current(view: View) -> Iterator[Problem]:
    """A key that DeepSpeed still reads under an old name; a later version refuses or ignores it.

    Some old names say less than the new ones: `cpu_offload` became the section `offload_optimizer`, which has a device,
    a path and more.

    Example:
        {"zero_optimization": {"stage": 2, "cpu_offload": true}}

    Instead:
        {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}

    Since: DeepSpeed 0.14
    """
    keys = view.keys
    for path, value in keys_of(view.config):
        key = key_at(keys, path)
        if key is not None and key.deprecated and path[:2] not in OWN_RULES:
            # A switch that is off stands for a section that is not there.
            off = value is False and all(each in keys.known_sections for each in key.replaced_by)
            instead = " or ".join(view.spell(each) for each in key.replaced_by if not off)
            yield Problem(
                path=path,
                message=f"{path[-1]} is an old name that DeepSpeed is about to drop",
                help=f"write {instead}" if instead else "remove it",
                on_key=True,
            )


@rule("KEY006")
def key_has_one_name(view: View) -> Iterator[Problem]:
    """One key under two of its names.

    DeepSpeed takes one of the two values without a word: of `bf16` and `bfloat16` that of `bf16`.

    Example:
        {"bf16": {"enabled": false}, "bfloat16": {"enabled": true}}

    Instead:
        {"bf16": {"enabled": true}}

    Since: DeepSpeed 0.14
    """
    keys = view.keys
    seen: dict[str, Path] = {}
    for path, _ in keys_of(view.config):
        canonical = canonical_path(keys, path)
        first = seen.setdefault(canonical, path) if canonical is not None else path
        if first != path and first[:-1] == path[:-1]:
            yield Problem(
                path=path,
                message=f"{path[-1]} and {first[-1]} are two names of one key: only one of them would count",
                help="remove one of the two",
                on_key=True,
            )


@rule("KEY007")
def raw_key_has_an_effect(view: View) -> Iterator[Problem]:
    """A raw key that DeepSpeed knows and that changes nothing in the rendered train.py.

    Such keys are for what the rendered training does not do (DeepSpeed's tuner, pipelines, its own data loader), or
    need a call that it does not make. DeepSpeed accepts them, and nobody would learn that they do nothing.

    Example (recipe):
        deepspeed:
          activation_checkpointing: {partition_activations: true}

    Instead:
        activation_checkpointing: full

    Since: dsgen 0.1
    """
    for key, reason in WITHOUT_EFFECT.items():
        if key in view.raw:
            yield Problem(path=(key,), message=f"{key} does nothing: {reason}", help="remove it", on_key=True)
