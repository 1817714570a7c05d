"""Logits and the loss: bytes of one micro batch."""

from __future__ import annotations

from dsgen.memory.job import Job


def loss_tokens(job: Job) -> int:
    """Tokens whose logits exist at once."""
    return min(job.chunk, job.tokens) if job.chunk else job.tokens


def forward_bytes(job: Job) -> int:
    """Most that the loss holds in the forward pass.

    transformers (loss/loss_utils.py, ForCausalLMLoss) upcasts: logits in the weights' type, in fp32, and their
    log-softmax in fp32: 10 bytes per token and vocabulary entry in 16 bits (measured), 8 in fp32. The chunked loss
    holds as much for the tokens of a chunk.
    """
    logits = job.element if job.element < 4 else 0
    return loss_tokens(job) * job.architecture.vocabulary_size * (logits + 4 + 4)


def kept_bytes(job: Job) -> int:
    """What the loss keeps for the backward pass: the log-softmax in fp32; chunks are recomputed and keep nothing."""
    return 0 if job.chunk else 4 * job.tokens * job.architecture.vocabulary_size


def backward_bytes(job: Job) -> int:
    """Most that the loss holds in the backward pass: log-softmax, its gradient and that of the logits, all in fp32:
    12 bytes per token and vocabulary entry (measured at _log_softmax_backward_data)."""
    return loss_tokens(job) * job.architecture.vocabulary_size * 12


def hidden_gradient_bytes(job: Job) -> int:
    """Gradient of the last layer's output; the chunked loss gathers its parts and then joins them."""
    return job.tokens * job.element * job.architecture.hidden_size * (2 if job.chunk else 1)


def head_gradient_bytes(job: Job) -> int:
    """Gradient of the output head while the loss runs backward: chunk after chunk is added to the sum of the earlier
    ones (autograd's input buffer). Zero when the head is frozen."""
    if job.adapter_rank:
        return 0
    whole = job.element * job.architecture.vocabulary_size * job.architecture.hidden_size
    return 2 * whole if job.chunk else whole


def logits_gradient_bytes(job: Job) -> int:
    """Gradient of the logits in the weights' type, which the output head's backward pass reads."""
    return loss_tokens(job) * job.architecture.vocabulary_size * job.element
