"""The order in which the modules of a model run, as the hooks of stage 3 see it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from dsgen.memory.activations import ATTENTION, DOWN, GATE, UP
from dsgen.memory.coordinator import NOTHING, Event, Pass
from dsgen.memory.job import EMBEDDING, FINAL_NORM, HEAD, Job
from dsgen.memory.loss import chunks

TOP = "around the model"
CHUNK = "chunk computed again"
_ATTENTION = ("q_proj", "q_norm", "k_proj", "k_norm", "v_proj", "W_pack")
_BLOCKS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("", ("input_layernorm",)),
    ("self_attn", (*_ATTENTION, "o_proj")),
    ("", ("post_attention_layernorm",)),
    ("mlp", ("gate_proj", "act_fn", "up_proj", "down_proj")),
)
"""The modules of a layer in the order in which the forward pass runs them (transformers, models/llama/
modeling_llama.py, LlamaDecoderLayer)."""
_INNER, _OUTER = ".lora_A", ".lora_B"
_NONE = NOTHING, 0
_WHOLE = 12
"""Models of so many layers are followed whole, whatever the limits reach across."""


class Modules:
    """Writes down the order in which the hooks of DeepSpeed run (runtime/zero/parameter_offload.py,
    _register_deepspeed_module), as seen in the real engine."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.adapted = job.adapter_modules if job.adapter_rank else frozenset[str]()
        layer = [(weight.module, weight.elements) for weight in job.parameters.layer]
        present = {name for name, _ in layer} | {"act_fn"}
        self.blocks = [(block, tuple(name for name in names if name in present)) for block, names in _BLOCKS]
        if job.adapter_rank:
            for inner, outer in zip(job.trained.layer[::2], job.trained.layer[1::2], strict=True):
                layer += [(inner.module + _INNER, inner.elements), (outer.module + _OUTER, outer.elements)]
        ends = [(weight.module, weight.elements) for weight in (*job.parameters.before, *job.parameters.after)]
        owned = _added(ends)
        # A bias is gathered with its weight, or stays; it is much smaller.
        largest = _largest(layer), _largest(ends)
        reach = 2 * max(job.live_elements, job.reuse_elements, job.prefetch_elements)
        in_layer, in_ends = (
            {name: size for name, size in some.items() if size > job.persistence_elements} for some in largest
        )
        self.has_large = bool(in_layer or in_ends)
        self.layers = job.architecture.layers
        if self.layers > _WHOLE:
            self.layers = min(self.layers, 6 + reach // max(1, sum(in_layer.values())))
        self.head = HEAD if HEAD in owned else EMBEDDING
        self.has_head = self.head in in_ends
        self.chunks = min(chunks(job), 2 + reach // max(1, in_ends.get(self.head, reach)))
        # Where layers are recomputed one by one, peft makes the embedding's output need a gradient
        # (peft_model.py, _prepare_model_for_gradient_checkpointing).
        self.reached = not job.adapter_rank or EMBEDDING in self.adapted or job.checkpoint_every == 1
        self._pass = Pass()
        self._written: dict[tuple[bool, bool], tuple[int, list[Event]]] = {}
        self._ends = self._numbered(owned, largest[1], 1)
        self._layer = self._numbered(_added(layer), largest[0], self.layers)

    def order(self) -> Pass:
        """One forward and backward pass."""
        job, every, layers = self.job, self.job.checkpoint_every, self.layers
        around = 3 if job.adapter_rank else 1
        for _ in range(around + 1):
            self._begin("", -1, "")
        self._visit(EMBEDDING, -1, EMBEDDING)
        self._begin("", -1, "")
        step = every or 1
        for first in range(0, layers, step):
            group = range(first, min(first + step, layers))
            self._begin("", first, "")
            for layer in group:
                self._forward(layer, whole=True)
            for layer in group[1:]:
                self._begin("", layer, "")
        self._visit(FINAL_NORM, -1, FINAL_NORM)
        for _ in range(self.chunks):
            self._visit(self.head, -1, HEAD)
        self._pass.first_back = len(self._pass.events)
        for _ in range(around):
            self._begin("", -1, TOP, back=True)
        for _ in range(self.chunks):
            if job.chunk:
                self._visit(self.head, -1, CHUNK, again=True)
            self._visit(self.head, -1, HEAD, back=True)
        self._begin("", -1, "", back=True)
        self._visit(FINAL_NORM, -1, FINAL_NORM, back=True)
        for first in reversed(range(0, layers, step)):
            group = range(first, min(first + step, layers))
            for layer in group:
                self._begin("", layer, "", back=True)
            for layer in reversed(group):
                self._backward(layer, group if every and layer == group[-1] else ())
        if self.reached:
            self._begin(EMBEDDING, -1, EMBEDDING, back=True)
        return self._pass

    def _numbered(self, owned: dict[str, int], largest: dict[str, int], times: int) -> dict[str, tuple[int, int]]:
        """Make parameters, so many times. For every module that has any: the number of its largest, the first time, and
        the elements of all of them."""
        frozen = [bool(self.job.adapter_rank) and not name.endswith((_INNER, _OUTER)) for name in largest]
        small = [size <= self.job.persistence_elements for size in largest.values()]
        first = self._pass.add([*largest.values()] * times, frozen * times, small * times)
        return {name: (first + i, owned[name]) for i, name in enumerate(largest)}

    def _begin(self, name: str, layer: int, label: str, *, back: bool = False, again: bool = False) -> None:
        number, elements = self._find(name, layer)
        self._pass.events.append(Event(number, elements, label, layer, False, back, again))

    def _end(
        self, name: str, layer: int, label: str, *, back: bool = False, again: bool = False, kept: bool = False
    ) -> None:
        """`kept`: another module that still runs has the same parameter."""
        number, elements = self._find(name, layer)
        if number or back:
            self._pass.events.append(Event(NOTHING if kept else number, elements, label, layer, True, back, again))

    def _find(self, name: str, layer: int) -> tuple[int, int]:
        """Of a module: the number of its parameter and the elements of all that it owns."""
        if layer < 0:
            return self._ends.get(name, _NONE)
        number, elements = self._layer.get(name, _NONE)
        return (number + layer * len(self._layer), elements) if number else _NONE

    def _visit(self, name: str, layer: int, label: str, *, back: bool = False, again: bool = False) -> None:
        self._begin(name, layer, label, back=back, again=again)
        self._end(name, layer, label, back=back, again=again)

    def _forward(self, layer: int, *, whole: bool, again: bool = False) -> None:
        """`whole`: to its very end; a layer that is computed again stops when the last tensor has been saved."""
        events = self._pass.events
        if (whole, again) not in self._written:
            start = len(events)
            self._write_forward(layer, whole=whole, again=again)
            self._written[whole, again] = layer, events[start:]
            return
        # Layers are alike.
        first, written = self._written[whole, again]
        shift = (layer - first) * len(self._layer)
        events.extend(
            Event(number and number + shift, elements, label, layer, ends, False, again)
            for number, elements, label, _, ends, _, _ in written
        )

    def _write_forward(self, layer: int, *, whole: bool, again: bool) -> None:
        for block, names in self.blocks:
            if block:
                self._begin("", layer, _part(names[0]), again=again)
            for name in names:
                part, pieces = _part(name), self._parts(name)
                ends = whole or name != "down_proj"
                if len(pieces) > 1:
                    self._begin(name + _INNER, layer, part, again=again)
                for piece in pieces:
                    self._begin(piece, layer, part, again=again)
                    if ends or piece != pieces[-1]:
                        self._end(piece, layer, part, again=again, kept=piece.endswith(_INNER))
                if len(pieces) > 1 and ends:
                    self._end(name + _INNER, layer, part, again=again)

    def _backward(self, layer: int, group: Sequence[int]) -> None:
        """`group`: layers that are computed again when this one needs what it has not kept."""
        passing = self._passing(stream=self.reached or layer > 0)
        for block, names in reversed(self.blocks):
            if block and any(name in passing for name in names):
                self._begin("", layer, "", back=True)
            for name in reversed(names):
                if name not in passing:
                    continue
                pieces = self._parts(name)
                if len(pieces) > 1:
                    self._begin(name + _INNER, layer, _around(name), back=True)
                for piece in reversed(pieces):
                    self._begin(piece, layer, piece, back=True)
                    for other in group:
                        self._forward(other, whole=other != group[-1], again=True)
                    group = ()
                    if not passing[name] and not piece.endswith(_OUTER):
                        break
                    self._end(piece, layer, piece, back=True, kept=piece.endswith(_INNER))
                if len(pieces) > 1 and passing[name]:
                    self._end(name + _INNER, layer, _around(name), back=True)

    def _parts(self, name: str) -> tuple[str, ...]:
        """A module, and where it has an adapter what is in that as well, in the order of the forward pass (peft,
        tuners/lora/layer.py, Linear.forward): itself, dropout, inner and outer matrix. The module around them looks at
        the inner matrix's type before, which makes it a parameter of its own for DeepSpeed
        (runtime/zero/parameter_offload.py, ZeROOrderedDict)."""
        return (name, "", name + _INNER, name + _OUTER) if name in self.adapted else (name,)

    def _passing(self, *, stream: bool) -> dict[str, bool]:
        """Modules of a layer whose output needs a gradient, and whether their input does. `stream`: whether what comes
        into the layer does."""
        found: dict[str, bool] = {}
        for _, names in self.blocks:
            inside = stream
            for name in names:
                if name in ("o_proj", "down_proj", "act_fn", "q_norm", "k_norm"):
                    inside = any(other in found for other in names)
                elif name in ("k_proj", "v_proj", "up_proj"):
                    inside = stream
                if inside or name in self.adapted:
                    found[name] = inside
            stream = stream or names[-1] in found
        return found


def _around(name: str) -> str:
    return f"around {name}"


def _part(name: str) -> str:
    """Of a layer's forward pass, that a module belongs to."""
    if name in (UP, DOWN):
        return name
    return GATE if name in (GATE, "act_fn", "post_attention_layernorm") else ATTENTION


def _added(some: Iterable[tuple[str, int]]) -> dict[str, int]:
    total: dict[str, int] = {}
    for name, size in some:
        total[name] = total.get(name, 0) + size
    return total


def _largest(some: Iterable[tuple[str, int]]) -> dict[str, int]:
    largest: dict[str, int] = {}
    for name, size in some:
        largest[name] = max(largest.get(name, 0), size)
    return largest
