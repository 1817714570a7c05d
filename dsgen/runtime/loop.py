"""The training loop."""

from __future__ import annotations

import resource
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from dsgen.runtime.batches import Batch, TrainingData
from dsgen.runtime.checkpoints import resume, save_checkpoint
from dsgen.runtime.distributed import gather
from dsgen.runtime.holders import Snapshot, keeping_track
from dsgen.runtime.memory import reclaim
from dsgen.runtime.models import count_parameters
from dsgen.runtime.own_loop import about, beside_estimate
from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.session import seed_everything
from dsgen.runtime.watch import Watch

if TYPE_CHECKING:
    from pathlib import Path

    from dsgen.runtime.session import Session

_MIB = 1 << 20


def train(run: Session, engine: Any, data: TrainingData) -> None:
    """Train to the end of the recipe, or until somebody asks the run to stop; then write the report.

    `engine` is DeepSpeed's, `data` comes from `build_data`. Rank 0 appends one row per optimizer step to
    metrics.jsonl. SIGTERM, SIGINT or a file `stop` in the run folder save a checkpoint and end the run after the
    current step. Raises RuntimeProblem when engine and settings disagree, or when the run learns nothing any more.
    """
    _check_engine(run, engine)
    run.measure_memory("initialize", engine=engine)
    total = data.steps()
    every, trainable = count_parameters(engine.module)
    run.journal.event(
        "plan",
        steps=total,
        tokens_per_step=data.global_batch * run.settings.data.sequence_length,
        samples_per_epoch=data.samples_per_epoch,
        parameters=every,
        trainable_parameters=trainable,
    )
    # Ranks must not drop the same activations.
    seed_everything(run.settings.seed + 1000003 * (run.ranks.rank + 1), run.accelerator)
    first = resume(run, engine, data)
    if first:
        run.measure_memory("resume", first)
    run.journal.open_metrics(keep_steps=first)
    _Loop(run, engine, data, first, total, every, trainable).run()


class _Loop:
    def __init__(
        self, run: Session, engine: Any, data: TrainingData, done: int, total: int, every: int, trainable: int
    ) -> None:
        self._run = run
        self._engine = engine
        self._data = data
        self._first = done
        self._done = done
        self._total = total
        self._parameters = every, trainable
        self._watch = Watch(run.settings.model.dtype)
        self._saved: Path | None = None
        self._saved_step = done if done else -1
        self._saved_at = time.monotonic()
        self._tokens = 0
        self._seconds = 0.0
        self._loss: float | None = None
        self._evaluation: float | None = None
        self._device_peak: int | None = None
        self._host_peak = 0

    def run(self) -> None:
        run, settings = self._run, self._run.settings
        run.journal.phase("train")
        status = "finished"
        while self._done < self._total:
            stop, save = self._step()
            if settings.reclaim_every_steps and self._done % settings.reclaim_every_steps == 0:
                reclaim(run.accelerator)
            evaluation = settings.evaluation
            if evaluation is not None and self._done % evaluation.every_steps == 0:
                self._evaluate()
            every = settings.checkpoint.every_steps
            if stop or save or (every and self._done % every == 0):
                self._save()
            if stop and self._done < self._total:
                status = "stopped"
                break
        if status == "finished" and settings.checkpoint.at_end and self._saved_step != self._done:
            self._save()
            if self._saved_step != self._done:
                raise RuntimeProblem(
                    "the run is finished, but its last checkpoint could not be written: no room on the disk",
                    "make room and start again with --resume auto",
                )
        self._report(status)

    def _step(self) -> tuple[bool, bool]:
        """One optimizer step. Gives whether to stop and whether a timed checkpoint is due, the same on all ranks."""
        import torch

        run, engine, data = self._run, self._engine, self._data
        settings = run.settings
        # The first step makes the optimizer's states, the second is like all that follow.
        measured = self._done - self._first < 2
        begun = time.perf_counter()
        batch = data.next_batch()
        loss = torch.zeros((), dtype=torch.float32, device=run.device)
        skipped_before = engine.skipped_steps
        snapshot = Snapshot(run, self._done + 1) if settings.memory_snapshot_step == self._done + 1 else None
        for samples in data.micro_batches(batch):
            tensors, targets = data.tensors(samples)
            boundary = engine.is_gradient_accumulation_boundary()
            # Looking at every storage takes a while: once a step.
            looked_at = engine if measured and boundary else None
            tracked = boundary and (snapshot or (measured and run.memory.counts))
            with keeping_track(engine.module) if tracked else nullcontext() as activations:
                micro_loss = engine(**tensors).loss
            if measured:
                run.measure_memory("forward", self._done + 1, engine=looked_at, activations=activations)
            if snapshot and boundary:
                snapshot.take("forward", engine, activations)
            share = _share(settings.world_size * settings.accumulation, targets, batch)
            if share != 1.0:
                micro_loss = micro_loss * share
            loss += micro_loss.detach()
            engine.backward(micro_loss)
            if measured:
                run.measure_memory("backward", self._done + 1, engine=looked_at)
            if boundary:
                if snapshot:
                    snapshot.take("backward", engine)
                rate = engine.get_lr()[0]
                unclipped = _plain_gradient_norm(engine)
            engine.step()
            if measured:
                run.measure_memory("step" if boundary else "accumulate", self._done + 1, engine=looked_at)
        if snapshot:
            snapshot.take("step", engine)
            snapshot.write()
        self._done += 1
        rows = gather(
            [
                loss,
                run.wants_to_stop(),
                self._timed_save_due(),
                (run.memory.peak() or 0) / _MIB,
                resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            ],
            run.device,
        )
        seconds = time.perf_counter() - begun
        self._loss = sum(row[0] for row in rows) / (settings.world_size * settings.accumulation)
        self._note_peaks(rows)
        self._tokens += batch.tokens
        self._seconds += seconds
        skipped = engine.skipped_steps > skipped_before
        norm = unclipped if unclipped is not None else engine.get_global_grad_norm()
        row = {
            "step": self._done,
            "loss": self._loss,
            "lr": rate,
            "grad_norm": None if norm is None else float(norm),
            "loss_scale": engine._get_optimizer_loss_scale() if engine.fp16_enabled() else None,
            "skipped_steps": engine.skipped_steps,
            "tokens_per_second": round(batch.tokens / seconds, 1),
            "device_peak_bytes": self._device_peak,
            "host_peak_bytes": self._host_peak,
        }
        run.journal.metrics(row)
        if run.ranks.rank == 0 and (self._done % settings.log_every_steps == 0 or self._done == self._total):
            run.console.line(_line(row, self._total))
        self._watch.step(self._done, self._loss, skipped=skipped)
        return any(row[1] for row in rows), bool(rows[0][2])

    def _timed_save_due(self) -> bool:
        every = self._run.settings.checkpoint.every_seconds
        return bool(every) and time.monotonic() - self._saved_at >= every

    def _note_peaks(self, rows: list[list[float]]) -> None:
        """Device: the most on any rank. Host: the most that the ranks of one node hold together."""
        if self._run.settings.accelerator != "cpu":
            self._device_peak = int(max(row[3] for row in rows) * _MIB)
        size = self._run.ranks.local_world_size
        self._host_peak = int(max(sum(row[4] for row in rows[i : i + size]) for i in range(0, len(rows), size)) * _MIB)

    def _evaluate(self) -> None:
        import torch

        engine, data = self._engine, self._data
        self._run.memory.end_phase("train")
        engine.eval()
        total = torch.zeros((), dtype=torch.float32, device=self._run.device)
        expected = 0
        with torch.no_grad():
            for batch in data.held_out():
                expected += batch.targets
                (samples,) = data.micro_batches(batch)
                tensors, targets = data.tensors(samples)
                total += engine(**tensors).loss * targets
        engine.train()
        self._run.memory.end_phase("evaluation")
        self._evaluation = sum(row[0] for row in gather([total], self._run.device)) / expected
        self._run.journal.event("evaluation", step=self._done, loss=self._evaluation)
        if self._run.ranks.rank == 0:
            self._run.console.line(f"step {self._done}: loss {self._evaluation:.4f} on held-out data")

    def _save(self) -> None:
        self._saved_at = time.monotonic()
        self._run.memory.end_phase("train")
        saved = save_checkpoint(self._run, self._engine, self._data, self._done)
        self._run.memory.end_phase("save")
        if saved is not None:
            self._saved, self._saved_step = saved, self._done

    def _report(self, status: str) -> None:
        run = self._run
        run.journal.phase("done")
        every, trainable = self._parameters
        if not self._first and self._done < 2:
            # Without the optimizer's states these are no passes of a training.
            run.memory.forget("forward", "backward", "accumulate")
        device = run.memory.report(lambda numbers: gather(numbers, run.device))
        run.journal.report(
            {
                "status": status,
                "steps": self._done,
                "planned_steps": self._total,
                "resumed_after": self._first,
                "first_loss": run.journal.first_loss,
                "last_loss": self._loss,
                "evaluation_loss": self._evaluation,
                "tokens": self._tokens,
                "seconds": round(self._seconds, 3),
                "tokens_per_second": round(self._tokens / self._seconds, 1) if self._seconds else None,
                "device_peak_bytes": self._device_peak,
                "host_peak_bytes": self._host_peak,
                "parameters": every,
                "trainable_parameters": trainable,
                "skipped_steps": self._engine.skipped_steps,
                "bad_rows": run.corpus.bad_rows if run.corpus else 0,
                "dropped_documents": self._data.samples.dropped,
                "checkpoint": str(self._saved) if self._saved else None,
                "memory": beside_estimate(run, device, self._host_peak),
                **about(run),
            }
        )
        run.journal.event("end", status=status, step=self._done)
        if run.ranks.rank == 0 and status == "stopped":
            run.console.line(f"stopped after step {self._done} of {self._total}; go on with --resume auto")


def _share(micro_steps: int, targets: int, batch: Batch) -> float:
    """Weight of a micro batch's mean loss, so that DeepSpeed's mean over ranks and micro steps is the mean over tokens.

    1 when all micro batches predict equally many tokens.
    """
    return targets * micro_steps / batch.targets


def _plain_gradient_norm(engine: Any) -> float | None:
    """2-norm of the reduced gradients where no optimizer of DeepSpeed's computes it (fp32 without ZeRO)."""
    if engine.zero_optimization() or engine.fp16_enabled() or engine.bfloat16_enabled():
        return None
    import torch

    gradients = [parameter.grad for parameter in engine.module.parameters() if parameter.grad is not None]
    return float(torch.nn.utils.get_total_norm(gradients))


def _check_engine(run: Session, engine: Any) -> None:
    settings = run.settings
    dtype = "fp16" if engine.fp16_enabled() else "bf16" if engine.bfloat16_enabled() else "fp32"
    pairs: list[tuple[str, Any, Any]] = [
        ("micro batch", settings.micro_batch, engine.train_micro_batch_size_per_gpu()),
        ("gradient accumulation", settings.accumulation, engine.gradient_accumulation_steps()),
    ]
    if not engine.torch_autocast_enabled():
        pairs.append(("precision", settings.model.dtype, dtype))
    wrong = [f"{what} is {here} in train.py and {there} there" for what, here, there in pairs if here != there]
    if wrong:
        raise RuntimeProblem(
            f"train.py and {run.ds_config} contradict each other: {'; '.join(wrong)}",
            "change the recipe and render it again, so that both agree",
        )


def _line(row: dict[str, Any], total: int) -> str:
    norm = "" if row["grad_norm"] is None else f"  grad norm {row['grad_norm']:.3f}"
    return (
        f"step {row['step']}/{total}  loss {row['loss']:.4f}  lr {row['lr']:.2e}{norm}"
        f"  {row['tokens_per_second']:,.0f} tokens/s"
    )
