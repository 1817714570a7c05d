"""What torch's caching allocator takes for the tensors of training steps: with room, and at the least.

    python benchmarks/allocator_replay.py

A model of the allocator (c10/cuda/CUDACachingAllocator.cpp; torch_npu's is a copy of it) is given the tensors of the
forward and backward passes of Llama-like models, as transformers 5.24 makes them, with sequences of one length and of
lengths that vary (log-normal, cut at a limit). Sizes count only what comes and goes; weights and states are left out.
Printed per job: bytes reserved with room, and the least limit that the job gets by with, both for each byte that
tensors hold at their peak. `dsgen.memory.reserved` takes its factors from here.
"""

from __future__ import annotations

import bisect
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

MIB = 1 << 20
SMALL = MIB
STEPS = 25


@dataclass(eq=False)
class Block:
    """A part of a segment."""

    size: int
    small: bool
    before: Block | None = None
    after: Block | None = None
    key: tuple[int, int] = (0, 0)
    free: bool = False


@dataclass
class Allocator:
    """The caching allocator on one stream: best fit, splitting, merging.

    At `limit_bytes` unused segments are given back. Raises MemoryError when that is not enough.
    """

    limit_bytes: float = math.inf
    reserved: int = 0
    most_reserved: int = 0
    allocated: int = 0
    most_allocated: int = 0
    _keys: dict[bool, list[tuple[int, int]]] = field(default_factory=lambda: {True: [], False: []})
    _blocks: dict[tuple[int, int], Block] = field(default_factory=dict)
    _count: int = 0

    def allocate(self, size: float) -> Block:
        """A block of at least `size` bytes."""
        wanted = max(512, -(-int(size) // 512) * 512)
        small = wanted <= SMALL
        keys = self._keys[small]
        place = bisect.bisect_left(keys, (wanted, 0))
        block = self._take(self._blocks[keys[place]]) if place < len(keys) else self._segment(wanted, small)
        rest = block.size - wanted
        if rest >= 512 if small else rest > SMALL:
            other = Block(rest, small, before=block, after=block.after)
            if block.after:
                block.after.before = other
            block.after, block.size = other, wanted
            self._put(other)
        self.allocated += block.size
        self.most_allocated = max(self.most_allocated, self.allocated)
        return block

    def free(self, *blocks: Block) -> None:
        """Blocks that no tensor holds any more."""
        for each in blocks:
            block = each
            self.allocated -= block.size
            if block.before and block.before.free:
                earlier = self._take(block.before)
                earlier.size += block.size
                earlier.after = block.after
                if block.after:
                    block.after.before = earlier
                block = earlier
            if block.after and block.after.free:
                later = self._take(block.after)
                block.size += later.size
                block.after = later.after
                if later.after:
                    later.after.before = block
            self._put(block)

    def _segment(self, wanted: int, small: bool) -> Block:
        size = 2 * MIB if small else 20 * MIB if wanted < 10 * MIB else -(-wanted // (2 * MIB)) * 2 * MIB
        if self.reserved + size > self.limit_bytes:
            for key in [*self._keys[True], *self._keys[False]]:
                block = self._blocks[key]
                if block.before is None and block.after is None:
                    self.reserved -= self._take(block).size
            if self.reserved + size > self.limit_bytes:
                raise MemoryError
        self.reserved += size
        self.most_reserved = max(self.most_reserved, self.reserved)
        return Block(size, small)

    def _put(self, block: Block) -> None:
        self._count += 1
        block.key, block.free = (block.size, self._count), True
        self._blocks[block.key] = block
        bisect.insort(self._keys[block.small], block.key)

    def _take(self, block: Block) -> Block:
        keys = self._keys[block.small]
        keys.pop(bisect.bisect_left(keys, block.key))
        del self._blocks[block.key]
        block.free = False
        return block


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A model; 16-bit weights and activations."""

    name: str
    hidden: int
    keys: int
    """Size of all keys of a token."""
    feed_forward: int
    vocabulary: int
    layers: int


def step(memory: Allocator, shape: Shape, tokens: int, recompute: bool) -> None:
    """One forward and backward pass."""
    h = 2 * shape.hidden * tokens
    inputs: list[tuple[Block, list[Block]]] = []
    x = memory.allocate(h)
    for _ in range(shape.layers):
        y, kept = layer(memory, shape, tokens, keep=not recompute)
        inputs.append((x, kept))
        x = y
    kept = []
    kept.append(norm(memory, h, kept))
    logits = shape.vocabulary * tokens
    first = memory.allocate(2 * logits)
    fp32 = memory.allocate(4 * logits)
    probabilities = memory.allocate(4 * logits)
    memory.free(fp32)
    gradient = memory.allocate(4 * logits)
    other = memory.allocate(4 * logits)
    memory.free(gradient, probabilities)
    last = memory.allocate(2 * logits)
    memory.free(other)
    flow = memory.allocate(h)
    memory.free(last, first, *kept, x)
    for source, held in reversed(inputs):
        if recompute:
            y, held = layer(memory, shape, tokens, keep=True)
            memory.free(y)
        flow = backward(memory, shape, tokens, held, flow)
        memory.free(source)
    memory.free(flow)


def norm(memory: Allocator, h: int, kept: list[Block] | None) -> Block:
    """RMSNorm: its input in fp32, the square, the normalised input in fp32 and in 16 bits, the output."""
    fp32 = memory.allocate(2 * h)
    memory.free(memory.allocate(2 * h))
    scaled = memory.allocate(2 * h)
    rounded = memory.allocate(h)
    memory.free(scaled)
    output = memory.allocate(h)
    if kept is None:
        memory.free(fp32, rounded)
    else:
        kept += [fp32, rounded]
    return output


def layer(memory: Allocator, shape: Shape, tokens: int, *, keep: bool) -> tuple[Block, list[Block]]:
    """The forward pass of a layer: its output, and what it keeps."""
    h, k, f = (2 * size * tokens for size in (shape.hidden, shape.keys, shape.feed_forward))
    kept: list[Block] = []

    def done(*blocks: Block) -> None:
        if keep:
            kept.extend(blocks)
        else:
            memory.free(*blocks)

    normed = norm(memory, h, kept if keep else None)
    q, key, value = memory.allocate(h), memory.allocate(k), memory.allocate(k)
    done(normed)
    turned = []
    for block, size in ((q, h), (key, k)):
        parts = [memory.allocate(size) for _ in range(3)]
        turned.append(parts.pop())
        memory.free(*parts, block)
    attended = memory.allocate(h)
    done(*turned, value)
    projected = memory.allocate(h)
    done(attended)
    residual = memory.allocate(h)
    memory.free(projected)
    normed = norm(memory, h, kept if keep else None)
    gate, activated, up = memory.allocate(f), memory.allocate(f), memory.allocate(f)
    done(normed)
    product = memory.allocate(f)
    done(gate, activated, up)
    down = memory.allocate(h)
    done(product)
    output = memory.allocate(h)
    memory.free(down, residual)
    return output, kept


def backward(memory: Allocator, shape: Shape, tokens: int, kept: list[Block], flow: Block) -> Block:
    """The backward pass of a layer: the gradient of its input."""
    h, k, f = (2 * size * tokens for size in (shape.hidden, shape.keys, shape.feed_forward))
    second = len(kept) * 2 // 3
    product = memory.allocate(f)
    up, silu = memory.allocate(f), memory.allocate(f)
    memory.free(product)
    gate = memory.allocate(f)
    memory.free(silu, *kept[second:])
    parts = [memory.allocate(h), memory.allocate(h)]
    memory.free(up, gate)
    flow = _norm_backward(memory, h, parts, flow)
    attended = memory.allocate(h)
    three = [memory.allocate(size) for size in (h, k, k)]
    memory.free(attended)
    parts = [memory.allocate(h), memory.allocate(h)]
    memory.free(*three, *kept[:second])
    return _norm_backward(memory, h, parts, flow)


def _norm_backward(memory: Allocator, h: int, parts: list[Block], flow: Block) -> Block:
    whole = memory.allocate(h)
    memory.free(*parts)
    fp32 = [memory.allocate(2 * h) for _ in range(3)]
    memory.free(*fp32[:2])
    rounded = memory.allocate(h)
    memory.free(fp32[2], whole)
    result = memory.allocate(h)
    memory.free(rounded, flow)
    return result


def lengths(limit: int, mean: float = 3234.4, deviation: float = 2547.5) -> list[int]:
    """Log-normal lengths, cut at the limit; the first two figures are those of a published data set."""
    chance = random.Random(5)
    variance = math.log(1 + (deviation / mean) ** 2)
    middle = math.log(mean) - variance / 2
    drawn = (chance.lognormvariate(middle, math.sqrt(variance)) for _ in range(STEPS))
    return [min(limit, max(32, int(length))) for length in drawn]


def run(shape: Shape, recompute: bool, steps: Iterable[int], limit_bytes: float = math.inf) -> Allocator | None:
    """The allocator after these steps; None when the limit is too low."""
    memory = Allocator(limit_bytes)
    try:
        for tokens in steps:
            step(memory, shape, tokens, recompute)
    except MemoryError:
        return None
    return memory


def least(shape: Shape, recompute: bool, steps: list[int], peak: int) -> float:
    """The least limit that works, to 1 %, for each byte that tensors hold at their peak."""
    low, high = 1.0, 2.0
    while high - low > 0.01:
        middle = (low + high) / 2
        low, high = (low, middle) if run(shape, recompute, steps, middle * peak) else (middle, high)
    return high


SHAPES = (
    Shape(name="0.5B", hidden=896, keys=128, feed_forward=4864, vocabulary=151936, layers=24),
    Shape(name="1.8B", hidden=2048, keys=2048, feed_forward=5504, vocabulary=151936, layers=24),
    Shape(name="7B", hidden=4096, keys=4096, feed_forward=11008, vocabulary=32000, layers=32),
    Shape(name="8B", hidden=4096, keys=1024, feed_forward=14336, vocabulary=128256, layers=32),
    Shape(name="14B", hidden=5120, keys=1024, feed_forward=13824, vocabulary=152064, layers=48),
)


def rows() -> Iterator[tuple[str, ...]]:
    for shape in SHAPES:
        for recompute in (True, False):
            for limit in (512, 2048, 8192):
                figures = []
                for steps in ([limit] * 3, lengths(limit)):
                    memory = run(shape, recompute, steps)
                    assert memory is not None
                    peak = memory.most_allocated
                    figures += [memory.most_reserved / peak, least(shape, recompute, steps, peak)]
                yield (
                    shape.name,
                    "recomputed" if recompute else "kept",
                    str(limit),
                    *(f"{each:.2f}" for each in figures),
                )


def main() -> None:
    print("model layers tokens | one length: with room, least | lengths that vary: with room, least")
    for row in rows():
        print("{:<5} {:<10} {:>6} | {} {} | {} {}".format(*row), flush=True)


if __name__ == "__main__":
    main()
