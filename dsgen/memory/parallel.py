"""What one rank holds of a model and of a sequence that several ranks share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from dsgen.catalog.models import Architecture
from dsgen.recipe.plan import Plan
from dsgen.rules.view import lookup


@dataclass(frozen=True, kw_only=True)
class Parallel:
    """How the ranks of a job share its work."""

    tensor: int = 1
    """Ranks that share each layer (AutoTP)."""
    sequence: int = 1
    """Ranks that share each sequence (Ulysses)."""
    vocabulary: bool = False
    """Whether those that share the layers share the logits too, and take the loss together."""
    gathers_logits: bool = False
    """Whether each of them makes its part of the logits, and gets those of the others."""

    def unmeasured(self, architecture: Architecture, tokens: int, *, adapters: bool) -> Iterator[str]:
        """What of a job whose ranks share work is not known, or not possible with DeepSpeed 0.19.8. `architecture` is a
        rank's, `tokens` those of a whole sequence."""
        if self.tensor > 1:
            yield "loading with tensor parallelism: counted as if a rank read only its part of the model"
            if adapters:
                yield "tensor parallelism with adapters: DeepSpeed 0.19.8 stops where it cuts a layer that has one"
            if architecture.family == "baichuan":
                yield "tensor parallelism of baichuan, whose model does not say how to cut it: counted as that of Llama"
        if self.sequence > 1:
            heads, keys = architecture.attention_heads, architecture.key_value_heads
            if tokens % self.sequence:
                yield f"sequence parallelism: {tokens} tokens are not equal parts for {self.sequence} ranks"
            if heads % self.sequence or (keys % self.sequence and self.sequence % keys):
                yield f"sequence parallelism on {self.sequence} ranks: DeepSpeed refuses {heads} heads, {keys} of keys"
            if self.tensor > 1:
                yield "tensor with sequence parallelism: DeepSpeed 0.19.8 stops such a job at its first batch"

    def key_value_copies(self, architecture: Architecture) -> int:
        """How often each head of keys and values is there among the ranks of a sequence: once, or as often as it takes
        for every rank to have one (runtime/sequence_parallel/ulysses_sp.py, kv_replication_factor)."""
        return max(1, self.sequence // architecture.key_value_heads)


def parallel_of(plan: Plan) -> Parallel:
    """How the ranks of a plan share its work.

    runtime/engine.py, _apply_autotp_partitioning: a tied output head, with its embedding, is cut by the vocabulary, and
    the loss is taken from the parts; another one only where `vocab_parallel_lm_head` says so. Otherwise one that is not
    tied is cut and its logits are gathered; a tied one stays whole (module_inject/auto_tp.py,
    _configure_gathered_column_tie_fallbacks).
    """
    said = lookup(plan.ds_config, "tensor_parallel.vocab_parallel_lm_head")
    tied = plan.architecture.tied_embeddings
    cut = plan.tensor_parallel > 1
    vocabulary = cut and (tied if said is None else bool(said))
    return Parallel(
        tensor=plan.tensor_parallel,
        sequence=plan.sequence_parallel,
        vocabulary=vocabulary,
        gathers_logits=cut and not vocabulary and not tied,
    )


def zero_ranks(plan: Plan) -> int:
    """What ZeRO divides by.

    With sequence parallelism weights and states are cut across the ranks of a sequence as well (utils/groups.py,
    _get_sequence_data_parallel_group); with tensor parallelism among the ranks that hold the same part of each layer.
    """
    return plan.data_parallel * plan.sequence_parallel


def rank_architecture(architecture: Architecture, parallel: Parallel) -> Architecture:
    """The model as the fullest rank of a tensor-parallel group has it: the first.

    AutoTP follows the plan that transformers' models carry (base_model_tp_plan; module_inject/tp_plan_converter.py):
    queries, keys and values, gate and up projection are cut by their outputs, the projections behind them by their
    inputs. Norms stay whole. Whole heads of keys and values are given out, with their queries; ranks beyond their
    number get none (module_inject/tp_shard.py, get_shard_size).
    """
    n = parallel.tensor
    if n == 1:
        return architecture
    keys = -(-architecture.key_value_heads // n)
    return replace(
        architecture,
        key_value_heads=keys,
        attention_heads=architecture.attention_heads * keys // architecture.key_value_heads,
        intermediate_size=-(-architecture.intermediate_size // n),
        vocabulary_size=-(-architecture.vocabulary_size // n) if parallel.vocabulary else architecture.vocabulary_size,
    )


def embedding_rows(architecture: Architecture, parallel: Parallel) -> int:
    """Rows of a whole model's embedding that a rank has: all, unless it is tied to a head that is cut."""
    if parallel.vocabulary and architecture.tied_embeddings:
        return -(-architecture.vocabulary_size // parallel.tensor)
    return architecture.vocabulary_size


def head_rows(architecture: Architecture, parallel: Parallel) -> int:
    """Rows of a whole model's output head that a rank has."""
    if parallel.vocabulary or parallel.gathers_logits:
        return -(-architecture.vocabulary_size // parallel.tensor)
    return architecture.vocabulary_size
