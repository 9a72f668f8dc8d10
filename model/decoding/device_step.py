"""One decode step of a plain GPT on a GPU: which kernels run, on what, in which order; `captured` records it.

A single row goes through kernels of our own from end to end, five a layer. More rows go through cuBLAS, with small
kernels between the products. Nothing here waits for the device or allocates while a step runs.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from model.cache import KVCache
from model.decoding import device_kernels as kernels
from model.decoding.steps import value_weights
from model.gpt import GPT

WEIGHT_BYTES = 384  # of the matrix that a thread holds while it waits for its input
LONGEST_WARP_ROW = 4096  # bytes of a matrix row that one warp reads alone
KEYS = 64  # of which a program of attention reads all at once
MOST_CHUNKS = 32  # programs that share a head's older keys
DRAW_BLOCK = 256  # a quarter of the tokens of a program that draws


class State:
    """What steps read and write from token to token, for B rows."""

    def __init__(self, model: GPT, rows: int, slots: int) -> None:
        weight = model.embedding.weight
        integers = {"dtype": torch.int64, "device": weight.device}
        self.model, self.rows, self.slots = model, rows, slots
        self.cache = KVCache(model.config, rows, slots, weight.device, weight.dtype)
        self.ids = torch.zeros(rows, **integers)  # drawn last
        self.dictated = torch.full((rows,), -1, **integers)  # fed in its place, unless negative
        self.positions = torch.zeros(rows, **integers)  # where the next id stands
        self.numbers = torch.zeros(rows, **integers)  # of the replies, for their noise
        self.seed = torch.zeros(1, **integers)
        self.temperature = torch.zeros(1, device=weight.device)
        self.logits = torch.zeros(rows, model.config.vocab_size, device=weight.device)
        self.draws = Draws(rows, model.config.vocab_size, weight.device)

    def draw(self, rows: int) -> None:
        """Draw ids from the logits of the first rows, and move their positions on."""
        draws, programs = self.draws, self.draws.bests.shape[1]
        kernels.draw[(rows, programs)](
            self.logits, self.temperature, self.seed, self.numbers, self.positions, self.ids, draws.bests,
            draws.choices, draws.tickets, self.slots - 1, self.logits.shape[1], PROGRAMS=programs, BLOCK=DRAW_BLOCK,
        )  # fmt: skip


class Draws:
    """What the programs that draw for the same row tell each other."""

    def __init__(self, rows: int, vocab: int, device: torch.device) -> None:
        programs = -(-vocab // (4 * DRAW_BLOCK))
        self.bests = torch.zeros(rows, programs, device=device)
        self.choices = torch.zeros(rows, programs, dtype=torch.int32, device=device)
        self.tickets = torch.zeros(rows, dtype=torch.int32, device=device)


@dataclass(frozen=True)
class Tile:
    """How a product is cut up: matrix rows and columns a program reads at once, and its warps."""

    rows: int
    block: int
    warps: int


def tile(inputs: int, itemsize: int) -> Tile:
    """The cut for matrices with rows of `inputs` numbers of `itemsize` bytes.

    A thread reads 16 bytes at a time and holds all its weights in registers. Long rows are shared by four warps, as
    each warp reads the whole input for itself.
    """
    warps = 1 if inputs * itemsize <= LONGEST_WARP_ROW else 4
    fit = WEIGHT_BYTES * 32 * warps // (inputs * itemsize)
    rows = 4 if fit >= 4 else 2 if fit >= 2 else 1
    return Tile(rows, 32 * warps * 16 // itemsize, warps)


def chunks(older: int, block: int) -> tuple[int, int]:
    """How many programs share up to so many older keys of a head, a power of two, and the keys of each, in blocks."""
    keys = block * max(1, -(-older // (MOST_CHUNKS * block)))
    return power_of_two(max(1, -(-older // keys))), keys


class Step:
    """From the ids of the first `rows` rows of a state to their logits, the new keys and values stored."""

    def __init__(
        self, state: State, rows: int, overlap: bool, quantized: dict[int, tuple[Tensor, Tensor]] | None = None
    ) -> None:
        """`overlap`: start kernels early (compute capability 9.0); `quantized`: E4M3 copies of matrices by address,
        read in their place for a single row."""
        model = state.model
        config, dtype, device = model.config, model.embedding.weight.dtype, state.logits.device
        self.state, self.rows, self.config, self.model = state, rows, config, model
        self.overlap = overlap
        self.launch = {"launch_pdl": True} if self.overlap else {}
        self.quantized = quantized or {}
        self.block = min(KEYS, 2 * KEYS * 128 // (config.head_dim * model.embedding.weight.element_size()))
        most = chunks(state.slots, self.block)[0]
        qkv_width = (config.heads + 2 * config.kv_heads) * config.head_dim
        width = config.heads * config.head_dim

        def buffer(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.zeros(rows, *shape, dtype=dtype, device=device)

        self.start = buffer(config.width, dtype=torch.float32)
        self.stream = buffer(config.width, dtype=torch.float32)
        self.x = buffer(config.width)
        self.gates = buffer(config.kv_heads, dtype=torch.float32)
        self.parts = buffer(most, width, dtype=torch.float32)  # may be as small as e^(-2 √D)
        self.totals = buffer(most, config.heads, dtype=torch.float32)
        self.tickets = buffer(config.heads, dtype=torch.int32)
        self.y = buffer(width)
        self.qkv = buffer(qkv_width, dtype=torch.float32 if rows == 1 else dtype)
        self.hidden = buffer(config.mlp_width)
        if rows > 1:
            self.delta = buffer(config.width)
            self.raised, self.raw_logits = buffer(config.mlp_width), buffer(config.vocab_size)

    def run(self) -> None:
        """Launch all kernels of the step. The same again while the state is the same: drawing is what moves on."""
        state, model = self.state, self.model
        kernels.embed[(self.rows,)](
            model.embedding.weight, state.ids, state.dictated, model.residual_scale, model.skip_scale, self.start,
            self.stream, self.x, self.config.width, BLOCK=power_of_two(self.config.width), OVERLAP=self.overlap,
            num_warps=8,
        )  # fmt: skip
        if self.rows == 1:
            self._single()
        else:
            self._batch()

    def _single(self) -> None:
        config, layers = self.config, self.config.layers
        for layer, block in enumerate(self.model.blocks):
            attention, mlp = block.attention, block.mlp
            _, gate = value_weights(self.model, layer)
            self._product(attention.qkv.weight, self.x, self.qkv, norm=True, gate=gate)
            self._attend(layer)
            self._product(attention.out.weight, self.y, self.x, add=True)
            self._product(mlp.up.weight, self.x, self.hidden, norm=True, relu2=True)
            self._product(mlp.down.weight, self.hidden, self.x, add=True, next_layer=(layer + 1) % layers)
        self._product(self.model.head.weight, self.x, self.state.logits, norm=True, softcap=config.softcap)

    def _product(
        self, weight: Tensor, x: Tensor, out: Tensor, *, norm: bool = False, add: bool = False, relu2: bool = False,
        next_layer: int = 0, softcap: float = 0.0, gate: Tensor | None = None,
    ) -> None:  # fmt: skip
        """A product of a single row; see the kernel. `next_layer` 0: the stream stays as it is."""
        config, (outputs, inputs) = self.config, weight.shape
        cut = tile(inputs, weight.element_size())
        weight, scale = self.quantized.get(weight.data_ptr(), (weight, None))
        kernels.product[(-(-outputs // cut.rows) + (gate is not None),)](
            weight, scale, x, out, self.stream, self.start, self.model.residual_scale, self.model.skip_scale,
            next_layer, gate, self.gates, softcap, outputs,
            K=inputs, KV=config.kv_heads, CHANNELS=0 if gate is None else gate.shape[1], NORM=norm, RELU2=relu2,
            ADD=add, MIX=next_layer > 0, CAP=softcap > 0, GATE=gate is not None, SCALED=scale is not None,
            ROWS=cut.rows, BLOCK=cut.block, OVERLAP=self.overlap, num_warps=cut.warps, **self.launch,
        )  # fmt: skip

    def _attend(self, layer: int) -> None:
        config, state, model = self.config, self.state, self.model
        keys, values = state.cache.keys[layer], state.cache.values[layer]
        table, _ = value_weights(model, layer)
        programs, size = chunks(min(config.windows[layer], state.slots) - 1, self.block)
        kernels.attend[(config.heads, programs, self.rows)](
            self.qkv, self.gates, table, state.ids, state.dictated, state.positions, model.cos, model.sin, keys, values,
            self.parts, self.totals, self.tickets, self.y, config.windows[layer], state.slots, keys.stride(0),
            H=config.heads, KV=config.kv_heads, D=config.head_dim, GATE=table is not None, KEYS=size, CHUNKS=programs,
            BLOCK=self.block, OVERLAP=self.overlap, num_warps=4, **self.launch,
        )  # fmt: skip

    def _batch(self) -> None:
        config, layers = self.config, self.config.layers
        self._settle(layer=0)
        for layer, block in enumerate(self.model.blocks):
            attention, mlp = block.attention, block.mlp
            torch.mm(self.x, attention.qkv.weight.T, out=self.qkv)
            self._attend(layer)
            torch.mm(self.y, attention.out.weight.T, out=self.delta)
            self._settle(add=True)
            torch.mm(self.x, mlp.up.weight.T, out=self.raised)
            self._activate(self.raised, self.hidden)
            torch.mm(self.hidden, mlp.down.weight.T, out=self.delta)
            self._settle(add=True, layer=layer + 1 if layer + 1 < layers else None, mix=layer + 1 < layers)
        torch.mm(self.x, self.model.head.weight.T, out=self.raw_logits)
        self._activate(self.raw_logits, self.state.logits, config.softcap)

    def _settle(self, *, add: bool = False, mix: bool = False, layer: int | None = None) -> None:
        """Between two products of a batch; see the kernel. `layer`: the one that reads the stream next, if new."""
        model = self.model
        gate = None if layer is None else value_weights(model, layer)[1]
        kernels.settle[(self.rows,)](
            self.stream, self.delta, self.start, model.residual_scale, model.skip_scale, layer or 0, self.x, gate,
            self.gates, self.config.width, ADD=add, MIX=mix, GATE=gate is not None, KV=self.config.kv_heads,
            CHANNELS=0 if gate is None else gate.shape[1], BLOCK=power_of_two(self.config.width), OVERLAP=self.overlap,
            num_warps=8, **self.launch,
        )  # fmt: skip

    def _activate(self, x: Tensor, out: Tensor, softcap: float = 0.0) -> None:
        count, block = x.numel(), 1024
        kernels.activate[(-(-count // block),)](
            x, out, softcap, count, CAP=softcap > 0, BLOCK=block, OVERLAP=self.overlap, **self.launch
        )


def power_of_two(value: int) -> int:
    """The smallest power of two that is at least `value`."""
    return 1 << (value - 1).bit_length()
