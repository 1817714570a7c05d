"""For a script that trains with transformers' Trainer: arguments that agree with ds_config.json, data, and progress."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dsgen.runtime.batches import TrainingData
from dsgen.runtime.own_loop import finish
from dsgen.runtime.problems import RuntimeProblem

if TYPE_CHECKING:
    from dsgen.runtime.session import Session

FOLDER = "trainer"
"""Where Trainer saves, in the run folder."""


def trainer_arguments(run: Session, steps: int) -> dict[str, Any]:
    """Keyword arguments for `transformers.TrainingArguments` that say what ds_config.json says.

    Trainer compares both and refuses what differs (transformers, integrations/deepspeed.py, HfTrainerDeepSpeedConfig);
    where the config names no scheduler it would bring a linear one of its own. `steps` are optimizer steps.
    Make the arguments before the model: at stage 3 transformers looks at them while it builds one.
    """
    config, settings = run.config, run.settings
    optimizer = _section(config, "optimizer")
    scheduler = _section(config, "scheduler")
    arguments: dict[str, Any] = {
        "output_dir": str(run.run_dir / FOLDER),
        "deepspeed": str(run.ds_config),
        "per_device_train_batch_size": settings.micro_batch,
        "gradient_accumulation_steps": settings.accumulation,
        "max_steps": steps,
        "max_grad_norm": config.get("gradient_clipping", 0.0),
        "bf16": settings.model.dtype == "bf16",
        "fp16": settings.model.dtype == "fp16",
        "use_cpu": settings.accelerator == "cpu",
        "seed": settings.seed,
        "logging_steps": settings.log_every_steps,
        "save_strategy": "steps" if settings.checkpoint.every_steps else "no",
        # Saving has its place in the run folder; reports go to metrics.jsonl.
        "report_to": [],
        "disable_tqdm": True,
        "remove_unused_columns": False,
    }
    if settings.checkpoint.every_steps:
        arguments["save_steps"] = settings.checkpoint.every_steps
        arguments["save_total_limit"] = settings.checkpoint.keep or None
    names = {"lr": "learning_rate", "eps": "adam_epsilon", "weight_decay": "weight_decay"}
    arguments |= {there: optimizer[here] for here, there in names.items() if here in optimizer}
    if "betas" in optimizer:
        arguments["adam_beta1"], arguments["adam_beta2"] = optimizer["betas"]
    if "warmup_num_steps" in scheduler:
        arguments["warmup_steps"] = scheduler["warmup_num_steps"]
    if not scheduler:
        arguments["lr_scheduler_type"] = "constant"
    return arguments


def _section(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    parameters = (config.get(name) or {}).get("params") or {}
    return parameters if isinstance(parameters, Mapping) else {}


def trainer_checkpoint(run: Session) -> str | None:
    """The Trainer's checkpoint that `--resume` names, for `resume_from_checkpoint`; None for a fresh start.

    Raises RuntimeProblem when a folder was named that holds none.
    """
    from transformers.trainer_utils import get_last_checkpoint

    wanted = run.arguments.resume
    if wanted is None:
        return None
    named = run.run_dir if wanted == "auto" else Path(wanted).absolute()
    folder = named / FOLDER
    found: str | None = get_last_checkpoint(str(folder)) if folder.is_dir() else None
    if found is None and named.name.startswith("checkpoint-") and named.is_dir():
        found = str(named)
    if found is None and wanted != "auto":
        raise RuntimeProblem(
            f"{named} holds no checkpoint of a Trainer",
            "name another, or leave --resume out to start from the beginning",
        )
    done = int(found.rsplit("-", 1)[1]) if found else 0
    # Trainer would train one step too many.
    if run.settings.steps is not None and done >= run.settings.steps:
        raise RuntimeProblem(
            f"{found} is of step {done}, and the training has {run.settings.steps}: it is finished",
            "raise length.steps to train on",
        )
    return found


def torch_dataset(data: TrainingData) -> Any:
    """The sequences that are trained on, as a `torch.utils.data.Dataset` of `input_ids` and `labels` on the CPU.

    In the order of the corpus: shuffling and the dealing to ranks are the loader's.
    """
    from torch.utils.data import Dataset

    class _Sequences(Dataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return data.samples_per_epoch

        def __getitem__(self, index: int) -> dict[str, Any]:
            return data.sequence(index)

    return _Sequences()


def trainer_callback(run: Session) -> Any:
    """A `transformers.TrainerCallback` that writes metrics.jsonl and report.json and lets TERM save and stop.

    Raises RuntimeProblem, on the first step, when the Trainer does not train with DeepSpeed at all.
    """
    from transformers import TrainerCallback

    class _Progress(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if args.deepspeed is None:
                raise RuntimeProblem(
                    "the Trainer was made without DeepSpeed: ds_config.json has no effect",
                    "TrainingArguments(**runtime.trainer_arguments(run, steps))",
                )
            run.journal.event("plan", steps=state.max_steps)
            run.journal.open_metrics(keep_steps=state.global_step)
            run.journal.phase("train")

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            from dsgen.runtime.distributed import gather

            if any(row[0] for row in gather([run.wants_to_stop()], run.device)):
                control.should_training_stop = control.should_save = True

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if logs and "loss" in logs:
                run.journal.metrics(
                    {
                        "step": state.global_step,
                        "loss": float(logs["loss"]),
                        "lr": logs.get("learning_rate"),
                        "grad_norm": logs.get("grad_norm"),
                    }
                )

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            finish(run, state.global_step, state.max_steps)

    return _Progress()
