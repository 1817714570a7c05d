"""Sequences from tokens, their order, and each rank's part of every batch.

The order depends on the seed and the epoch alone: step s trains on samples [s*G, (s+1)*G) of the endless row of
shuffled epochs, G being the global batch. How G is dealt to ranks and micro batches changes no step's set of samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dsgen.runtime.corpus import Corpus
from dsgen.runtime.problems import RuntimeProblem
from dsgen.runtime.settings import Settings

if TYPE_CHECKING:
    from dsgen.runtime.session import Session

IGNORED = -100
"""Label of a position that no loss is taken of (the convention of transformers)."""


class Samples:
    """The sequences of a corpus: sample i as token ids and labels.

    packed: the documents end to end, cut every `length` tokens, the rest dropped. truncated: one document each.
    instruction: one prompt and answer each, loss on the answer only. The last two are cut at `length` and padded
    on the right; padding needs no attention mask, since no token attends to a later one.
    """

    def __init__(self, corpus: Corpus, mode: str, length: int) -> None:
        self._corpus = corpus
        self._length = length
        self.dropped = 0
        """Documents that leave nothing to learn within `length` tokens."""
        self._documents: Any = None
        if mode == "packed":
            self.count = int(len(corpus.tokens) // length)
            self.targets = np.full(self.count, length - 1, dtype=np.int64)
            self.tokens = np.full(self.count, length, dtype=np.int64)
            return
        tokens = np.minimum(np.diff(corpus.starts), length)
        # The model shifts labels: the first token of a sequence is never predicted.
        first_target = 1 if corpus.answers is None else np.maximum(corpus.answers, 1)
        targets = np.maximum(tokens - first_target, 0)
        self._documents = np.flatnonzero(targets)
        self.dropped = int(len(targets) - len(self._documents))
        self.count = len(self._documents)
        self.targets = targets[self._documents]
        self.tokens = tokens[self._documents]

    def fill(self, index: int, ids: Any, labels: Any) -> None:
        """Write sample `index` into one row of ids and one of labels, both int64 of the sequence length."""
        corpus = self._corpus
        if self._documents is None:
            ids[:] = corpus.tokens[index * self._length : (index + 1) * self._length]
            labels[:] = ids
            return
        document = self._documents[index]
        start, size = int(corpus.starts[document]), int(self.tokens[index])
        ids[:size] = corpus.tokens[start : start + size]
        ids[size:] = corpus.end[-1]
        labels[:size] = ids[:size]
        labels[size:] = IGNORED
        if corpus.answers is not None:
            labels[: int(corpus.answers[document])] = IGNORED


@dataclass(frozen=True)
class Batch:
    """What one optimizer step trains on, over all ranks."""

    samples: Any
    """Sample numbers, in the order in which micro steps and ranks take them."""
    targets: int
    """Predicted tokens: those that the loss is the mean of."""
    tokens: int
    """Tokens read, padding not counted."""


class TrainingData:
    """The training set, seen from one rank."""

    def __init__(self, settings: Settings, corpus: Corpus, *, rank: int, device: Any) -> None:
        data = settings.data
        self.samples = Samples(corpus, data.mode, data.sequence_length)
        self.fingerprint = f"{corpus.fingerprint}-{data.mode}-{data.sequence_length}"
        self.position = 0
        """Samples that all ranks together have trained on; with the seed it says what comes next."""
        self._settings = settings
        self._rank = rank
        self._device = device
        self._orders: dict[int, Any] = {}
        self._ranks_micro = settings.micro_batch * settings.world_size
        self.global_batch = self._ranks_micro * settings.accumulation
        if self.samples.count == 0:
            raise _nothing_to_learn(settings, corpus, self.samples)
        held_out = 0
        if settings.evaluation is not None:
            held_out = settings.evaluation.steps * self._ranks_micro
            if held_out >= self.samples.count:
                raise RuntimeProblem(
                    f"evaluation holds out {held_out} of {self.samples.count} sequences: none is left to train on",
                    "lower evaluation.steps, shorten the sequences, or give more text",
                )
        # Which sequences are held out must not depend on the epoch, nor on whether training is shuffled.
        order = _permutation(self.samples.count, settings.seed, stream=1, epoch=0)
        self._held_out = order[:held_out]
        self._training = np.sort(order[held_out:])

    @property
    def samples_per_epoch(self) -> int:
        """Sequences that are trained on once per epoch."""
        return len(self._training)

    def steps(self) -> int:
        """Optimizer steps of the whole run. Epochs and tokens are rounded up to whole steps."""
        settings = self._settings
        lengths = [settings.steps, settings.epochs, settings.tokens]
        if sum(length is not None for length in lengths) != 1:
            raise RuntimeProblem("the length of training must be given by steps, epochs or tokens, one of the three")
        if settings.steps is not None:
            return settings.steps
        if settings.epochs is not None:
            return math.ceil(settings.epochs * self.samples_per_epoch / self.global_batch)
        assert settings.tokens is not None
        per_sample = float(np.mean(self.samples.tokens[self._training]))
        return math.ceil(settings.tokens / (per_sample * self.global_batch))

    def next_batch(self) -> Batch:
        """The batch at `position`, which moves on."""
        batch = self._batch(np.array([self._sample(self.position + i) for i in range(self.global_batch)]))
        self.position += self.global_batch
        return batch

    def held_out(self) -> list[Batch]:
        """The evaluation set as batches of one micro step each."""
        return [self._batch(part) for part in self._held_out.reshape(-1, self._ranks_micro)]

    def micro_batches(self, batch: Batch) -> list[Any]:
        """This rank's sample numbers in each micro step of `batch`."""
        rounds = len(batch.samples) // self._ranks_micro
        size = self._settings.micro_batch
        return [batch.samples[i * self._ranks_micro + self._rank * size :][:size] for i in range(rounds)]

    def tensors(self, samples: Any) -> tuple[dict[str, Any], int]:
        """`input_ids` and `labels` of shape (micro_batch, sequence_length), int64 on the device; and their targets."""
        import torch

        shape = (len(samples), self._settings.data.sequence_length)
        ids, labels = np.empty(shape, dtype=np.int64), np.empty(shape, dtype=np.int64)
        for row, index in enumerate(samples):
            self.samples.fill(int(index), ids[row], labels[row])
        targets = int(self.samples.targets[samples].sum())
        names = {"input_ids": ids, "labels": labels}
        return {name: torch.from_numpy(value).to(self._device) for name, value in names.items()}, targets

    def sequence(self, index: int) -> dict[str, Any]:
        """`input_ids` and `labels` of the `index`-th sequence of the training part, int64 on the CPU."""
        import torch

        length = self._settings.data.sequence_length
        ids, labels = np.empty(length, dtype=np.int64), np.empty(length, dtype=np.int64)
        self.samples.fill(int(self._training[index]), ids, labels)
        return {"input_ids": torch.from_numpy(ids), "labels": torch.from_numpy(labels)}

    def _batch(self, samples: Any) -> Batch:
        return Batch(samples, int(self.samples.targets[samples].sum()), int(self.samples.tokens[samples].sum()))

    def _sample(self, position: int) -> int:
        epoch, place = divmod(position, len(self._training))
        if epoch not in self._orders:
            self._orders = {kept: order for kept, order in self._orders.items() if kept == epoch - 1}
            self._orders[epoch] = (
                self._training[_permutation(len(self._training), self._settings.seed, stream=0, epoch=epoch)]
                if self._settings.data.shuffle
                else self._training
            )
        return int(self._orders[epoch][place])


def _permutation(count: int, seed: int, *, stream: int, epoch: int) -> Any:
    """A fixed shuffle of range(count). RandomState, because numpy promises that its streams never change (NEP 19)."""
    words = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF, stream, epoch]
    return np.random.RandomState(np.array(words, dtype=np.uint32)).permutation(count)


def _nothing_to_learn(settings: Settings, corpus: Corpus, samples: Samples) -> RuntimeProblem:
    length = settings.data.sequence_length
    if settings.data.mode == "packed":
        return RuntimeProblem(
            f"the data set has {len(corpus.tokens)} tokens, less than one sequence of {length}",
            "give more text or a smaller batch.sequence_length",
        )
    what = "prompt fills the sequence" if settings.data.mode == "instruction" else "text is a single token"
    return RuntimeProblem(
        f"nothing can be learned from the data set: in all {samples.dropped} documents the {what} of {length} tokens",
        "give a larger batch.sequence_length" if settings.data.mode == "instruction" else "give longer texts",
    )


def build_data(run: Session) -> TrainingData:
    """The training data of the run: call it before `build_model`, so that a data set without text costs nothing.

    Raises RuntimeProblem when not one sequence can be made, or when the recipe names no text.
    """
    if run.corpus is None:
        raise RuntimeProblem("the recipe names no text", "give it data: {files: ...}, or read your own in the script")
    return TrainingData(run.settings, run.corpus, rank=run.ranks.rank, device=run.device)
