"""Logits and the loss: bytes of one micro batch."""

from __future__ import annotations

from dsgen.memory.job import Job


def loss_tokens(job: Job) -> int:
    """Tokens whose logits exist at once."""
    return min(job.chunk, _predicting(job)) if job.chunk else job.tokens


def _predicting(job: Job) -> int:
    """Tokens of the chunked loss: without the last one of each sequence, which nothing follows."""
    return job.tokens - job.tokens // job.sequence


def chunks(job: Job) -> int:
    """How many parts the loss is taken in."""
    return max(1, -(-_predicting(job) // job.chunk)) if job.chunk else 1


def forward_bytes(job: Job) -> int:
    """Most that the loss holds in the forward pass.

    transformers (loss/loss_utils.py, ForCausalLMLoss) upcasts: logits in the weights' type, in fp32, and their
    log-softmax in fp32: 10 bytes per token and vocabulary entry in 16 bits (measured), 8 in fp32. The chunked loss
    holds as much for the tokens of a chunk.
    Shared layers: logits are gathered, once as they come and once in order (module_inject/layers.py,
    GatherFromTensorParallelRegion). Shared logits (sequence/cross_entropy.py, _VocabParallelCrossEntropy): logits, in
    fp32, less their maximum, and that as a power (measured).
    """
    logits = job.element if job.element < 4 else 0
    if job.parallel.vocabulary:
        return loss_tokens(job) * job.architecture.vocabulary_size * (logits + 4 + 4 + 4)
    if job.parallel.gathers_logits:
        gathering = job.element * (_own_vocabulary(job) + 2 * job.architecture.vocabulary_size)
        return loss_tokens(job) * max(gathering, job.architecture.vocabulary_size * (logits + 4 + 4))
    return loss_tokens(job) * job.architecture.vocabulary_size * (logits + 4 + 4)


def kept_bytes(job: Job) -> int:
    """What the loss keeps for the backward pass: the log-softmax in fp32; chunks are recomputed and keep nothing."""
    return 0 if job.chunk else 4 * job.tokens * job.architecture.vocabulary_size


def backward_bytes(job: Job) -> int:
    """Most that the loss holds in the backward pass: log-softmax, its gradient and that of the logits, all in fp32:
    12 bytes per token and vocabulary entry (measured at _log_softmax_backward_data). Shared logits: the powers, their
    share of the sum, and that in the weights' type."""
    if job.parallel.vocabulary:
        last = job.element if job.element < 4 else 0
        return loss_tokens(job) * job.architecture.vocabulary_size * (4 + 4 + last)
    return loss_tokens(job) * job.architecture.vocabulary_size * 12


def hidden_gradient_bytes(job: Job) -> int:
    """Gradient of the last layer's output; the chunked loss gathers its parts and then joins them."""
    return job.tokens * job.element * job.architecture.hidden_size * (2 if job.chunk else 1)


def head_gradient_bytes(job: Job) -> int:
    """Gradient of the output head while the loss runs backward: chunk after chunk is added to the sum of the earlier
    ones (autograd's input buffer). Zero when the head is frozen."""
    if job.adapter_rank:
        return 0
    whole = job.element * _own_vocabulary(job) * job.architecture.hidden_size
    return 2 * whole if chunks(job) > 1 else whole


def logits_gradient_bytes(job: Job) -> int:
    """Gradient of a rank's logits in the weights' type, which the output head's backward pass reads."""
    return loss_tokens(job) * _own_vocabulary(job) * job.element


def _own_vocabulary(job: Job) -> int:
    """Vocabulary entries whose logits this rank makes."""
    whole = job.architecture.vocabulary_size
    return -(-whole // job.parallel.tensor) if job.parallel.gathers_logits else whole
