"""Saving and continuing a run, so that no crash at any moment costs more than the steps since the last save.

A checkpoint is written into `checkpoints/step-N.partial`. When the files of every rank are there and synced, its
manifest (names and sizes) is written, the folder gets its final name, and only then `latest` moves, atomically.
Before one is loaded, every rank compares the contents of its own files with the CRC-32 sums in them.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import zipfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsgen.runtime.batches import TrainingData
from dsgen.runtime.distributed import gather
from dsgen.runtime.journal import now, sync_folder, write_atomically
from dsgen.runtime.models import count_parameters
from dsgen.runtime.optimizer_states import complete_optimizer
from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.settings import Model, model_of

if TYPE_CHECKING:
    from dsgen.runtime.session import Session

FOLDER = "checkpoints"
LATEST = "latest"
MODEL_FILE = "model.json"
_MANIFEST = "manifest.json"
_PARTIAL = ".partial"
_NAME = re.compile(r"step-(\d{8,})")
_RANK_FILE = re.compile(r"(?:zero_pp_rank_|generators-|offloaded_tensors/rank)(\d+)[_./]")


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What a complete checkpoint holds."""

    step: int
    """Optimizer steps done."""
    samples: int
    """Samples that were trained on; the next one comes after them."""
    data: str
    """Fingerprint of the training data."""
    seed: int
    world_size: int
    zero_stage: int
    files: dict[str, int]
    """Sizes in bytes."""
    time: float


def name_of(step: int) -> str:
    """Name of the checkpoint folder of a step."""
    return f"step-{step:08d}"


def complete_checkpoints(run_dir: Path) -> list[Path]:
    """The checkpoint folders that got their final name, newest first."""
    folders = (run_dir / FOLDER).glob("step-*")
    return sorted((folder for folder in folders if _NAME.fullmatch(folder.name)), key=_step, reverse=True)


def _step(folder: Path) -> int:
    match = _NAME.fullmatch(folder.name)
    return int(match.group(1)) if match else -1


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint whose files are all there in full length.

    Raises RuntimeProblem that says what is wrong with it.
    """
    try:
        fields = json.loads((folder / _MANIFEST).read_text(encoding="utf-8"))
        manifest = Manifest(**fields)
    except FileNotFoundError as error:
        raise RuntimeProblem(f"{folder} has no {_MANIFEST}: it is no complete checkpoint") from error
    except (OSError, ValueError, TypeError) as error:
        raise RuntimeProblem(f"{folder / _MANIFEST} cannot be read: {error}") from error
    if manifest.step != _step(folder):
        raise RuntimeProblem(f"{folder / _MANIFEST} is damaged: it says step {manifest.step}")
    for name, size in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise RuntimeProblem(f"checkpoint {folder} lacks {name}")
        if path.stat().st_size != size:
            raise RuntimeProblem(f"checkpoint {folder}: {name} has {path.stat().st_size} bytes instead of {size}")
    return manifest


def check_contents(folder: Path, names: Iterable[str]) -> None:
    """Raise RuntimeProblem when a file was changed after it was written, though its size is right.

    torch.save puts a CRC-32 sum beside every tensor (a .pt file is a zip archive); torch.load never looks at it.
    Swap files of NVMe offload carry no sums and are not checked.
    """
    for name in names:
        if not name.endswith(".pt"):
            continue
        try:
            with zipfile.ZipFile(folder / name) as archive:
                damaged = archive.testzip()
        except Exception as error:
            # A damaged directory of an archive makes zipfile raise errors of all kinds.
            raise RuntimeProblem(f"checkpoint {folder}: {name} is damaged: {error}") from error
        if damaged is not None:
            raise RuntimeProblem(f"checkpoint {folder}: {name} is damaged: {damaged} has another checksum")


def save_checkpoint(run: Session, engine: Any, data: TrainingData, step: int) -> Path | None:
    """Save everything that continuing after `step` needs; a collective.

    Returns the checkpoint's folder, or None when the disk has no room for it (said on the console and in
    events.jsonl; nothing was written). Raises RuntimeProblem when writing fails; earlier checkpoints stay whole.
    """
    run.journal.phase("checkpoint")
    root = run.run_dir / FOLDER
    partial = root / (name_of(step) + _PARTIAL)
    final = root / name_of(step)
    lack = _lacking_room(run, engine, root) if run.ranks.rank == 0 else ""
    if gather([1.0 if lack else 0.0], run.device)[0][0]:
        run.journal.event("checkpoint_skipped", step=step, reason=lack)
        if lack:
            run.console.error(f"warning: no checkpoint at step {step}: {lack}")
        run.journal.phase("train")
        return None
    if run.ranks.rank == 0:
        for broken in root.glob(f"*{_PARTIAL}"):
            shutil.rmtree(broken, ignore_errors=True)
    gather([0.0], run.device)
    try:
        engine.save_checkpoint(
            str(root), tag=partial.name, save_latest=False, exclude_frozen_parameters=_frozen_is_elsewhere(run)
        )
        _save_generators(run, partial)
        _sync_own_files(run, partial)
    except (OSError, RuntimeError) as error:
        # torch tells of a full disk by a RuntimeError of its writer (PytorchStreamWriter or, when it closes the file,
        # inline_container.cc); any other one is a peer that died, or a fault.
        writer = ("PytorchStreamWriter", "inline_container")
        if isinstance(error, RuntimeError) and not any(name in str(error) for name in writer):
            raise
        free = shutil.disk_usage(run.run_dir).free
        raise RuntimeProblem(
            f"the checkpoint of step {step} could not be written: {error} ({_gib(free)} GiB free)",
            f"earlier checkpoints in {root} are whole: make room and start again with --resume auto",
        ) from error
    gather([0.0], run.device)
    if run.ranks.rank == 0:
        _complete(run, data, step, partial, final)
        _prune(run)
    gather([0.0], run.device)
    run.journal.event("checkpoint", step=step, path=str(final))
    run.journal.phase("train")
    return final


def _frozen_is_elsewhere(run: Session) -> bool:
    """Whether weights that no step changes can be had again without the checkpoint: by the file or by the seed."""
    return run.settings.model.adapter is not None


def _lacking_room(run: Session, engine: Any, root: Path) -> str:
    """Why the next checkpoint does not fit on the disk; empty when it does."""
    earlier = [sum(_sizes(folder).values()) for folder in complete_checkpoints(run.run_dir)]
    if earlier:
        need = earlier[0]
    else:
        every, trainable = count_parameters(engine.module)
        saved = trainable if _frozen_is_elsewhere(run) else every
        # fp32 weights and two moments of what is trained, 2- or 4-byte weights of what is saved, 1 MiB for the rest.
        need = 12 * trainable + (4 if run.settings.model.dtype == "fp32" else 2) * saved + (1 << 20)
    root.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(root).free
    if free > 1.05 * need:
        return ""
    return f"it needs {_gib(need)} GiB and {root} has {_gib(free)} GiB free"


def _sizes(folder: Path) -> dict[str, int]:
    """The files in a folder and below it, with their bytes."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def _gib(size: int) -> str:
    return f"{size / (1 << 30):.2f}"


def _save_generators(run: Session, folder: Path) -> None:
    import numpy
    import torch

    kind, keys, position, has_gauss, cached = numpy.random.get_state()
    state: dict[str, Any] = {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": (kind, [int(key) for key in keys], position, has_gauss, cached),
    }
    if run.settings.accelerator != "cpu":
        state["accelerator"] = run.accelerator.get_rng_state().cpu()
    torch.save(state, folder / f"generators-{run.ranks.rank}.pt")


def _restore_generators(run: Session, folder: Path) -> None:
    import numpy
    import torch

    state = torch.load(folder / f"generators-{run.ranks.rank}.pt", map_location="cpu", weights_only=True)
    torch.set_rng_state(state["torch"])
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    numpy.random.set_state((kind, numpy.array(keys, dtype=numpy.uint32), position, has_gauss, cached))
    if "accelerator" in state:
        run.accelerator.set_rng_state(state["accelerator"])


def _sync_own_files(run: Session, folder: Path) -> None:
    """Bring to the disk what this rank wrote; rank 0 also takes the files that belong to no rank."""
    for name in _files_of(run.ranks.rank, _sizes(folder)):
        descriptor = os.open(folder / name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _files_of(rank: int, names: Iterable[str]) -> list[str]:
    """The files that a rank answers for: its own, and for rank 0 those that belong to no rank."""
    owners = ((name, _RANK_FILE.search(name)) for name in names)
    return [name for name, owner in owners if (int(owner.group(1)) if owner else 0) == rank]


def _complete(run: Session, data: TrainingData, step: int, partial: Path, final: Path) -> None:
    write_atomically(partial / MODEL_FILE, json.dumps(asdict(run.settings.model), indent=2) + "\n")
    files = _sizes(partial)
    absent = [rank for rank in range(run.ranks.world_size) if f"generators-{rank}.pt" not in files]
    if absent:
        raise RuntimeProblem(
            f"{partial} lacks the files of rank {', '.join(map(str, absent[:8]))}",
            "the run folder must be the same folder on all nodes (a shared file system)",
        )
    manifest = Manifest(
        step=step,
        samples=data.position,
        data=data.fingerprint,
        seed=run.settings.seed,
        world_size=run.ranks.world_size,
        zero_stage=run.zero_stage,
        files=files,
        time=now(),
    )
    write_atomically(partial / _MANIFEST, json.dumps(asdict(manifest), indent=2) + "\n")
    if final.exists():
        shutil.rmtree(final)
    partial.rename(final)
    sync_folder(final.parent)
    write_atomically(final.parent / LATEST, final.name + "\n")


def read_model_settings(folder: Path) -> Model:
    """The model that a checkpoint is of."""
    return model_of(json.loads((folder / MODEL_FILE).read_text(encoding="utf-8")))


def _prune(run: Session) -> None:
    keep = run.settings.checkpoint.keep
    if keep <= 0:
        return
    for folder in complete_checkpoints(run.run_dir)[keep:]:
        # Without its manifest a half-deleted folder is no checkpoint.
        (folder / _MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def resume(run: Session, engine: Any, data: TrainingData) -> int:
    """Continue from the checkpoint that `--resume` names; returns the steps done so far, 0 for a fresh start.

    A damaged newest checkpoint is passed over, loudly, for the one before. Raises RuntimeProblem when a checkpoint
    was asked for by path and is not usable, or when it belongs to another job. A collective.
    """
    wanted = run.arguments.resume
    if wanted is None:
        return 0
    found = _choose(run, wanted)
    if found is None:
        return 0
    folder, manifest = found
    _check_same_job(run, data, folder, manifest)
    try:
        loaded, _ = engine.load_checkpoint(
            str(folder.parent), tag=folder.name, load_module_strict=not _frozen_is_elsewhere(run)
        )
    except Exception as error:
        raise RuntimeProblem(
            f"DeepSpeed cannot load checkpoint {folder}: {error}",
            "if the recipe was changed, start a new run; otherwise move this folder away to go on from the one before",
        ) from error
    if loaded is None:
        raise RuntimeProblem(f"DeepSpeed found nothing to load in {folder}")
    complete_optimizer(engine, folder)
    _restore_generators(run, folder)
    data.position = manifest.samples
    run.journal.event("resume", step=manifest.step, path=str(folder))
    if run.ranks.rank == 0:
        run.console.line(f"going on after step {manifest.step} from {folder}")
    return manifest.step


def _choose(run: Session, wanted: str) -> tuple[Path, Manifest] | None:
    """The checkpoint to go on from, the same on all ranks; None when there is none at all. A collective."""
    named = Path(wanted).absolute()
    if wanted != "auto" and _NAME.fullmatch(named.name):
        candidates = [named]
    elif wanted == "auto":
        candidates = complete_checkpoints(run.run_dir)
    elif (named / FOLDER).is_dir():
        candidates = complete_checkpoints(named)
    else:
        raise RuntimeProblem(
            f"{named} is neither a checkpoint nor a run folder with checkpoints",
            "name another, or leave --resume out to start from the beginning",
        )
    proposed = 0
    while True:
        # Rank 0 proposes: a file system may show the ranks different states.
        own = _step(candidates[proposed]) if proposed < len(candidates) else 0
        step = int(gather([float(own)], run.device)[0][0])
        if step == 0:
            break
        proposed += 1
        folder = next((folder for folder in candidates if _step(folder) == step), None)
        manifest, problem = _inspect(run, folder)
        answers = gather([folder is None, problem is not None], run.device)
        blind = [rank for rank, answer in enumerate(answers) if answer[0]]
        if blind:
            raise RuntimeProblem(
                f"rank {blind[0]} does not see the checkpoint of step {step} that rank 0 sees",
                "the run folder must be the same folder on all nodes (a shared file system)",
            )
        refusing = [rank for rank, answer in enumerate(answers) if answer[1]]
        if folder is not None and manifest is not None and not refusing:
            return folder, manifest
        problem = problem or RuntimeProblem(f"checkpoint {folder}: files of rank {refusing[0]} are damaged")
        if candidates == [named]:
            raise problem
        run.journal.event("checkpoint_refused", path=str(folder), reason=problem.message)
        if run.ranks.rank == (0 if 0 in refusing else refusing[0]):
            run.console.error(f"warning: {problem.message}; trying the checkpoint before it")
    if proposed or wanted != "auto":
        raise RuntimeProblem(f"no usable checkpoint in {run.run_dir if wanted == 'auto' else wanted}")
    return None


def _inspect(run: Session, folder: Path | None) -> tuple[Manifest | None, RuntimeProblem | None]:
    """The manifest of a checkpoint, or what is wrong with it as far as this rank has looked."""
    if folder is None:
        return None, None
    try:
        manifest = read_manifest(folder)
        check_contents(folder, _files_of(run.ranks.rank, manifest.files))
    except RuntimeProblem as problem:
        return None, problem
    return manifest, None


def _check_same_job(run: Session, data: TrainingData, folder: Path, manifest: Manifest) -> None:
    differences = [
        f"{what} was {there} and is {here}"
        for what, there, here in (
            ("the number of ranks", manifest.world_size, run.ranks.world_size),
            ("the ZeRO stage", manifest.zero_stage, run.zero_stage),
            ("the seed", manifest.seed, run.settings.seed),
        )
        if there != here
    ]
    if manifest.data != data.fingerprint:
        differences.append("the training data, its tokens or the sequence length changed")
    if differences:
        raise RuntimeProblem(
            f"checkpoint {folder} cannot be continued here: {'; '.join(differences)}",
            "continue with the recipe and the data of that run, or start a new run",
        )
