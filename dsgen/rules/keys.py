"""Keys of ds_config.json: known, in the right place, of the right type, and not said twice."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from dsgen.catalog.deepspeed_keys import Key, Keys, known_versions, load_keys
from dsgen.catalog.key_history import last_version, next_version, renamed_from, renamed_to
from dsgen.catalog.lookup import alike, nearest
from dsgen.documents.positions import Path
from dsgen.findings import Edit, Severity
from dsgen.rules.registry import Problem, rule
from dsgen.rules.view import View, keys_of, lookup, shown

_OWN_RULES = {("optimizer", "params"), ("scheduler", "params")}
"""Sections whose keys depend on the type beside them: the families `optimizer` and `schedule` check them."""

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

_COMMON = frozenset(
    {
        "",
        "activation_checkpointing",
        "bf16",
        "fp16",
        "optimizer",
        "optimizer.params",
        "scheduler",
        "scheduler.params",
        "zero_optimization",
        "zero_optimization.offload_optimizer",
        "zero_optimization.offload_param",
    }
)
"""Sections that a key in the wrong place is commonly meant for, whether the config has them or not."""

_OFFLOAD_STAGES = {"offload_optimizer": (1, 2, 3), "offload_param": (3,)}
"""Offload section -> the stages at which it does anything."""

_COMMENT_STARTS = ("_", "#", "//", "$")
_COMMENT_WORDS = {"comment", "comments", "note", "notes", "readme", "description", "desc"}

LAUNCHER_KEYS = {
    "hostfile": "--hostfile",
    "include": "--include",
    "exclude": "--exclude",
    "num_nodes": "--num_nodes",
    "num_gpus": "--num_gpus",
    "num_accelerators": "--num_gpus",
    "node_rank": "--node_rank",
    "master_addr": "--master_addr",
    "master_port": "--master_port",
    "launcher": "--launcher",
    "launcher_args": "--launcher_args",
    "local_rank": "--local_rank, which the launcher sets",
    "world_size": "the number of processes that the launcher starts",
}
"""Settings of DeepSpeed's launcher that people write into the config -> where they belong."""


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
    for unknown in _unknown_keys(view):
        if unknown.is_comment or unknown.is_launchers or unknown.belongs_to:
            continue
        near = nearest(unknown.name, view.own_names.get(unknown.section, ())) or unknown.near
        fix = _rename(view, unknown)
        near = (str(fix[0].to[-1]),) if fix else near
        if not unknown.section and unknown.name in _MEANT:
            near = (_MEANT[unknown.name],)
        elif unknown.comes_with is not None and unknown.renamed is None:
            near = ()
        elif near and alike(unknown.name, near[0]):
            near = near[:1]
        elif not near:
            near = tuple(map(view.spell, _near_elsewhere(view.deepspeed, unknown.name)))
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
    for unknown in _unknown_keys(view):
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
    for unknown in _unknown_keys(view):
        if unknown.belongs_to and not unknown.is_launchers:
            places = " or ".join(view.spell(path) for path in unknown.belongs_to[:3])
            yield Problem(
                path=unknown.path,
                message=f"{unknown.name} does not belong {unknown.where}: {unknown.effect}",
                help=f"write it as {places}{_with_stage(view, unknown)}",
                on_key=True,
                fix=_move(view, unknown),
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
    for unknown in _unknown_keys(view):
        if unknown.is_launchers:
            yield Problem(
                path=unknown.path,
                message=f"{unknown.name} is a setting of the launcher: {unknown.effect}",
                help=f"say it on the command line: {LAUNCHER_KEYS[unknown.name]}",
                on_key=True,
            )


@dataclass(frozen=True, kw_only=True)
class _Unknown:
    """A key that its section does not have."""

    path: Path
    section: str
    name: str
    value: Any
    ignored: bool
    version: str
    sections: frozenset[str]
    """Sections that the config has."""

    @property
    def near(self) -> tuple[str, ...]:
        """What it is called in this version; else keys of the section with a similar name, best first."""
        if self.renamed is not None:
            return (self.renamed,)
        return () if "." in self.name else _near(self.version, self.section, self.name)

    @property
    def renamed(self) -> str | None:
        """The name that it has in this version and did not have in another."""
        path = ".".join(map(str, self.path))
        name = renamed_to(path, self.version) or renamed_from(path, self.version)
        return None if name is None else name.rpartition(".")[2]

    @property
    def belongs_to(self) -> tuple[str, ...]:
        """Paths of the keys of this very name in sections that may be meant; empty where they are many."""
        paths = [
            path
            for path in _paths_by_name(self.version).get(self.name, ())
            if (section := path.rpartition(".")[0]) in _COMMON or section in self.sections
        ]
        below = tuple(path for path in paths if self.section and path.startswith(f"{self.section}."))
        return below or (tuple(paths) if len(paths) <= _MANY else ())

    @property
    def is_comment(self) -> bool:
        return self.ignored and (self.name.startswith(_COMMENT_STARTS) or self.name.lower() in _COMMENT_WORDS)

    @property
    def is_launchers(self) -> bool:
        return not self.section and self.name in LAUNCHER_KEYS

    @property
    def where(self) -> str:
        return f"in {self.section}" if self.section else "at the top level"

    @property
    def history(self) -> str:
        """Which other versions of DeepSpeed know it."""
        if self.comes_with is not None:
            return f" (it comes with {self.comes_with})"
        last = None if "." in self.name else last_version(self.newest_path)
        return "" if last is None else f" ({last} was the last to know it)"

    @property
    def newest_path(self) -> str:
        """The path by the names of the newest version."""
        return load_keys().canonical(f"{self.section}.{self.name}" if self.section else self.name)

    @property
    def comes_with(self) -> str | None:
        """The next version that knows it."""
        return None if "." in self.name else next_version(self.newest_path, self.version)

    @property
    def effect(self) -> str:
        return "it is ignored without a word" if self.ignored else "it refuses to start"


def _unknown_keys(view: View) -> Iterator[_Unknown]:
    keys = view.keys
    sections = frozenset(
        canonical
        for path, value in keys_of(view.config)
        if isinstance(value, Mapping) and (canonical := _canonical(keys, path)) is not None
    )
    for path, value in keys_of(view.config):
        section, name = ".".join(map(str, path[:-1])), str(path[-1])
        if not _checked(keys, section) or _key(keys, path) is not None or _canonical(keys, path) in keys.removed:
            continue
        yield _Unknown(
            path=path,
            section=section,
            name=name,
            value=value,
            ignored=keys.section_policy(section) == "ignored",
            version=view.deepspeed,
            sections=sections,
        )


_MANY = 3
"""Sections that have a key of one name in common: with more of them the name says nothing of the place."""


@functools.cache
def _paths_by_name(version: str) -> Mapping[str, tuple[str, ...]]:
    """Name of a key, or another name of it -> the paths where it stands."""
    found: dict[str, tuple[str, ...]] = {}
    for key in load_keys(version):
        for name in (key.name, *key.aliases) if not key.deprecated else ():
            found[name] = (*found.get(name, ()), key.path)
    return found


@functools.lru_cache(maxsize=4096)
def _near(version: str, section: str, name: str) -> tuple[str, ...]:
    keys = load_keys(version)
    beside = keys.canonical(section) if section else ""
    paths = keys.suggestions(f"{section}.{name}" if section else name)
    known = [key for key in map(keys.get, paths) if key is not None and not key.deprecated]
    return tuple(key.name for key in known if key.path.rpartition(".")[0] == beside)


@functools.lru_cache(maxsize=4096)
def _near_elsewhere(version: str, name: str) -> tuple[str, ...]:
    """Paths of the keys of common sections that a name can only be a misspelling of."""
    return tuple(
        key.path
        for key in load_keys(version)
        if key.path.rpartition(".")[0] in _COMMON and not key.deprecated and alike(name, key.name)
    )[:_MANY]


def _rename(view: View, unknown: _Unknown) -> tuple[Edit, ...]:
    """The change of an unknown key into the only one that it can mean."""
    if not unknown.near or nearest(unknown.name, view.own_names.get(unknown.section, ())):
        return ()
    best = unknown.near[0]
    section = lookup(view.config, unknown.path[:-1])
    if (
        not (alike(unknown.name, best) or unknown.renamed)
        or best in section
        or not _fits(view, f"{unknown.section}.{best}".lstrip("."), unknown.value)
    ):
        return ()
    return (Edit(action="rename", path=unknown.path, to=(*unknown.path[:-1], best)),)


def _move(view: View, unknown: _Unknown) -> tuple[Edit, ...]:
    """The change of place of a key that can stand in one other section only."""
    if len(unknown.belongs_to) != 1 or view.kind != "ds_config":
        return ()
    target = tuple(unknown.belongs_to[0].split("."))
    around = lookup(view.config, target[:-1])
    if target[:1] == unknown.path[:1] and len(unknown.path) > len(target):
        return ()
    if around is not None and (not isinstance(around, Mapping) or target[-1] in around):
        return ()
    if around is None and len(target) > 2:
        return ()
    if ".".join(target[:-1]) not in _COMMON:
        return ()
    if target[0] == "zero_optimization" and target[-1] != "stage":
        stages = _OFFLOAD_STAGES.get(target[1], (0, 1, 2, 3))
        if not isinstance(around, Mapping) or "stage" not in around or view.stage not in stages:
            return ()  # at stage 0, which is the default, it would do nothing there
    return (
        (Edit(action="move", path=unknown.path, to=target),)
        if _fits(view, unknown.belongs_to[0], unknown.value)
        else ()
    )


def _with_stage(view: View, unknown: _Unknown) -> str:
    """What has to be said of the stage where a key is to go into zero_optimization of a ds_config."""
    if view.kind != "ds_config" or unknown.name == "stage":
        return ""
    if not all(path.startswith("zero_optimization.") for path in unknown.belongs_to):
        return ""
    if lookup(view.config, ("zero_optimization", "stage")) is None:
        return ", and say the stage there: without one it is 0"
    stages = _OFFLOAD_STAGES.get(unknown.name, (0, 1, 2, 3))
    return "" if view.stage is None or view.stage in stages else f", and take stage {stages[-1]}"


def _fits(view: View, path: str, value: Any) -> bool:
    key = view.keys.get(path)
    if key is None:
        return False
    return value_problem(key, value) is None or _taken_as(view.keys, key, value) is not None


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
        canonical = _canonical(keys, path)
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
        key = _key(keys, path)
        if (path[:2] in _OWN_RULES and len(path) > 2) or value == "auto":
            continue
        problem = value_problem(key, value)
        if problem is None or path in not_finite:
            continue
        name = view.spell(path).rpartition(".")[2]
        taken = _taken_as(keys, key, value) if key is not None and view.kind == "ds_config" else None
        if key is not None and view.kind == "ds_config" and _is_interval(key, value):
            yield Problem(
                path=path,
                message=f"{name}: {problem}: DeepSpeed takes it, and prints at the steps that are multiples of it",
                help=f"write {max(1, round(value))}",
                severity=Severity.WARNING,
            )
        elif taken is None:
            if key is not None and key.types == ("bool",) and isinstance(value, str):
                if key.path in _ADDED_UP:
                    problem += ": DeepSpeed stops with a TypeError"
                else:
                    problem += ": where DeepSpeed reads it by hand, any text counts as true"
            meant = _meant(key, value) if key is not None else None
            sure = meant is not None and view.kind == "ds_config" and _is_same(value, meant)
            yield Problem(
                path=path,
                message=f"{name}: {problem}",
                help=_default_help(key) if meant is None else f"write {_written(meant)}{_explained(key, value)}",
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
        canonical = _canonical(keys, path)
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
        key = _key(keys, path)
        if key is not None and key.deprecated and path[:2] not in _OWN_RULES:
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
        canonical = _canonical(keys, path)
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


def value_problem(key: Key | None, value: Any) -> str | None:
    """What is wrong with a value, as a sentence; None when DeepSpeed takes it. `key` is None for an unknown key."""
    items = value if isinstance(value, list) else [value]
    if any(isinstance(item, float) and not math.isfinite(item) for item in items):
        return "expected a finite number, which is all that JSON can hold"
    if key is None:
        return None
    if not _has_type(key, value):
        return f"expected {' or '.join(_TYPE_WORDS[kind] for kind in key.types)}, got {shown(value)}"
    if key.path in _TEXTS and any(not isinstance(item, str) for item in items):
        return f"expected text in the list, got {shown(next(item for item in items if not isinstance(item, str)))}"
    if key.choices and value is not None and not isinstance(value, Mapping):
        known = {_comparable(key, choice) for choice in key.choices}
        for item in items:
            if _comparable(key, item) not in known:
                return f"expected one of {', '.join(map(str, key.choices))}, got {shown(item)}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if "float" not in key.types and abs(value) >= 2**63:
            return f"expected a number below 2^63, got {value:g}"
        limits = (
            (key.minimum, value < (key.minimum or 0), "at least"),
            (key.exclusive_minimum, value <= (key.exclusive_minimum or 0), "more than"),
            (key.maximum, value > (key.maximum or 0), "at most"),
            (key.exclusive_maximum, value >= (key.exclusive_maximum or 0), "less than"),
        )
        for limit, crossed, words in limits:
            if limit is not None and crossed:
                return f"expected {words} {limit:g}, got {value}"
    return None


_TEXTS = frozenset(
    {
        "data_types.keep_in_fp32_modules",
        "zero_optimization.leaf_module.classes",
        "zero_optimization.leaf_module.names",
        "zero_optimization.leaf_module.name_suffixes",
    }
)
"""Lists that DeepSpeed checks to hold text only (runtime/zero/leaf_module_config.py, runtime/config.py)."""


def _comparable(key: Key, value: Any) -> str:
    """A choice as text, so that 2.0 is 2, as it is when DeepSpeed reads a file."""
    text = str(int(value) if isinstance(value, float) and value.is_integer() else value)
    return text.lower() if key.any_case else text


_TYPE_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "list": "a list",
    "dict": "a mapping",
    "null": "null",
    "python": "an object that the program makes, and no value of a config",
}


def _has_type(key: Key, value: Any) -> bool:
    kinds = set(key.types)
    if "python" in kinds:
        return False  # an object of the program, which no JSON value can be
    if value is None:
        return "null" in kinds
    if isinstance(value, bool):
        return "bool" in kinds
    if isinstance(value, int):
        return bool(kinds & {"int", "float"})
    if isinstance(value, float):
        return "float" in kinds or ("int" in kinds and value.is_integer())
    if isinstance(value, str):
        return "str" in kinds
    if isinstance(value, list):
        return "list" in kinds
    return "dict" in kinds


def _default_help(key: Key | None) -> str:
    if key is None or key.default is None:
        return ""
    if key.path in _TEXTS:
        return "write names in quotes"
    return f"DeepSpeed's own default is {shown(key.default)}"


_DTYPE_WORDS = {
    "half": "fp16",
    "float16": "fp16",
    "fp_16": "fp16",
    "bfloat16": "bf16",
    "bfp16": "bf16",
    "bfloat": "bf16",
    "float32": "fp32",
    "float": "fp32",
}
"""Names of number types elsewhere -> DeepSpeed's."""


def _meant(key: Key, value: Any) -> Any:
    """The value that one of a wrong type or name stands for, where DeepSpeed takes that; None where nothing is near."""
    if not isinstance(value, str) or len(value) > 40:
        return None
    text = value.strip()
    candidates: list[Any] = []
    if key.path == "fp16.loss_scale" and text.lower() == "dynamic":
        candidates.append(0)
    if {"int", "float"} & set(key.types):
        candidates.extend(_numbers(text.replace("_", ""), whole="float" not in key.types))
    if "bool" in key.types and text.lower() in (*_TRUE, *_FALSE):
        candidates.append(text.lower() in _TRUE)
    if key.choices:
        words = [choice for choice in key.choices if isinstance(choice, str)]
        candidates.extend(choice for choice in words if choice.lower() == text.lower())
        candidates.append(_DTYPE_WORDS.get(text.lower().removeprefix("torch."), text.lower()))
        candidates.extend(choice for choice in words if alike(text, choice))
    return next((each for each in candidates if value_problem(key, each) is None), None)


def _numbers(text: str, *, whole: bool) -> Iterator[int | float]:
    try:
        number = float(text)
    except ValueError:
        return
    if math.isfinite(number):
        if number.is_integer() and abs(number) < 2**63 and (whole or text.lstrip("+-").isdecimal()):
            yield int(number)
        yield number


def _is_same(value: str, meant: Any) -> bool:
    """Whether a value that DeepSpeed refuses only writes another one differently, so that it may be changed."""
    if isinstance(meant, str):
        return value.strip().lower() == meant.lower()
    return not isinstance(meant, bool) and value.strip().lower() != "dynamic"


def _written(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else shown(value)


def _explained(key: Key | None, value: Any) -> str:
    return ", which means dynamic" if key is not None and str(value).strip().lower() == "dynamic" else ""


def _is_interval(key: Key, value: Any) -> bool:
    """Whether it is a number of steps that is not whole, which DeepSpeed takes (runtime/engine.py)."""
    return key.path == "steps_per_print" and isinstance(value, float) and 0 < value < 2**63


@functools.lru_cache(maxsize=4096)
def _checked(keys: Keys, section: str) -> bool:
    """Whether unknown keys of a section are worth a word: it is a section, and its keys are not the user's own."""
    if tuple(section.split(".")) in _OWN_RULES:
        return False
    return keys.canonical(section) in keys.known_sections and keys.section_policy(section) != "free"


def _taken_as(keys: Keys, key: Key, value: Any) -> Any:
    """What DeepSpeed makes of a value of a wrong type; None when it refuses it or fails on it."""
    section = key.path.rpartition(".")[0]
    lenient = bool(section) and keys.section_policy(section) == "refused"  # read by pydantic, which converts
    taken: Any = None
    if isinstance(value, bool) and {"int", "float"} & set(key.types):
        if key.path in _NO_BOOLEANS:
            return None
        taken = int(value)
    elif not lenient and key.types == ("bool",) and key.path not in _ADDED_UP:
        # read by hand: whatever is true for Python counts as true, every text for one
        right = value is None or isinstance(value, (int, float)) or str(value).lower() in _TRUE
        taken = bool(value) if right else None
    elif lenient and "bool" in key.types and str(value).lower() in (*_TRUE, *_FALSE, "1.0", "0.0"):
        taken = str(value).lower() in (*_TRUE, "1.0")
    elif lenient and isinstance(value, str) and {"int", "float"} & set(key.types):
        try:
            taken = int(value) if "int" in key.types and "float" not in key.types else float(value)
        except ValueError:
            return None
    return taken if taken is not None and value_problem(key, taken) is None else None


_NO_BOOLEANS = ("fp16.loss_scale", "fp16.loss_scale_window", "fp16.min_loss_scale")
"""Numbers whose validators refuse true and false (runtime/precision_config.py)."""

_ADDED_UP = ("wall_clock_breakdown",)
"""Read by hand with `|`, which takes numbers and booleans only (runtime/config.py)."""

_TRUE = ("true", "on", "yes", "y", "t", "1")
_FALSE = ("false", "off", "no", "n", "f", "0")
"""Words that pydantic takes for a boolean."""


@functools.lru_cache(maxsize=16384)
def _canonical(keys: Keys, path: Path) -> str | None:
    """A path by the names that DeepSpeed documents; None when a name has a dot in it, which no key has."""
    return None if any("." in str(part) for part in path) else keys.canonical(".".join(map(str, path)))


def _key(keys: Keys, path: Path) -> Key | None:
    canonical = _canonical(keys, path)
    return None if canonical is None else keys.get(canonical)
