"""Cross entropy over a chunk of tokens at a time, so that the logits of all tokens never exist together.

The plain loss of transformers holds about 12 bytes per token and vocabulary entry at its peak (three fp32 tensors of
logit shape); this one holds as much for `chunk` tokens only, and computes the logits twice.
"""

from __future__ import annotations

import functools
from typing import Any

from dsgen.runtime.problems import RuntimeProblem

IGNORED = -100

_SCALED_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier_scale")


def chunk_loss(model: Any, chunk: int) -> None:
    """Make `model(input_ids=..., labels=...)` take its loss over `chunk` tokens at a time; it returns no logits then.

    The loss is the mean over all labels that are not -100, as in transformers' own.
    Raises RuntimeProblem for models that do more to their logits than one linear layer.
    """
    config = model.config.get_text_config()
    for name in _SCALED_LOGITS:
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise RuntimeProblem(
                f"the loss cannot be taken in chunks: {type(model).__name__} changes its logits ({name})",
                "set loss: plain",
            )
    head = model.get_output_embeddings()
    if head is None:
        raise RuntimeProblem(f"the loss cannot be taken in chunks: {type(model).__name__} has no output layer")
    model.forward = functools.partial(_forward, model, model.forward, chunk)


def _forward(model: Any, plain: Any, chunk: int, *args: Any, labels: Any = None, **kwargs: Any) -> Any:
    if labels is None:
        return plain(*args, **kwargs)
    from transformers.modeling_outputs import CausalLMOutputWithPast

    hidden = model.base_model(*args, **kwargs).last_hidden_state
    # Position t predicts token t + 1: the last one of a sequence has nothing to predict.
    hidden = hidden[:, :-1].reshape(-1, hidden.shape[-1])
    targets = labels[:, 1:].reshape(-1)
    return CausalLMOutputWithPast(loss=chunked_cross_entropy(model.get_output_embeddings(), hidden, targets, chunk))


def chunked_cross_entropy(head: Any, hidden: Any, targets: Any, chunk: int) -> Any:
    """Mean cross entropy of `head(hidden)` against `targets`, a scalar in fp32.

    hidden: (tokens, hidden size); targets: (tokens,), -100 where no loss is taken; head: the output layer.
    """
    import torch
    from torch.utils.checkpoint import checkpoint

    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    for part, wanted in zip(hidden.split(chunk), targets.split(chunk), strict=True):
        if torch.is_grad_enabled():
            total = total + checkpoint(_summed, head, part, wanted, use_reentrant=False)
        else:
            total = total + _summed(head, part, wanted)
    return total / (targets != IGNORED).sum()


def _summed(head: Any, hidden: Any, targets: Any) -> Any:
    import torch

    logits = head(hidden).float()
    return torch.nn.functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
