"""nvfp4-emulated: what training in four bits computes, on any device: NVFP4's numerics (arXiv 2509.25149) in plain
torch. It shows what the format costs in loss, and is slower than bf16.

A number is E2M1 × E4M3 × float32: four bits of its own, a scale that a block of 16 shares, and a scale of the tensor.
All three products of a layer, forward, for the input's gradient and for the weight's, take quantised operands, whose
blocks lie along the dimension that is summed over:

- activations and weights are rounded to the nearest number, ties to even;
- weights share a scale over 16 × 16 entries, so that forward and backward see the same W;
- gradients are rounded up or down by chance, which is right on average;
- for the weight's gradient both operands pass a random Hadamard transform over 16 tokens: outliers spread over their
  block, and the product stays what it is.

E2M1 × E4M3 has at most 6 significant bits, so operands without the tensor's scale are exact in bf16, and products of
them in float32: the sums are those of the hardware but for their order. What is not finite makes the whole tensor NaN.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from model.linear import Format

BLOCK = 16
LARGEST_E2M1, LARGEST_E4M3 = 6.0, 448.0
RANGE = LARGEST_E2M1 * LARGEST_E4M3  # of a quantised entry, in units of the tensor's scale
TINY = 2.0**-100  # tensors whose entries are all far below this become zero: their scale would not be a normal float32
SIGN_SEED = 0  # of the Hadamard transform: the same signs in all layers and updates, as in the paper
NOISE_BITS = 21  # of stochastic rounding: few enough that a number of the format never moves
# A 32-bit hash of C. Wellons' hash-prospector: (shift, factor) of two rounds, the factor below 2^31 in size, so that no
# product leaves int64.
ROUNDS = ((16, 0x21F0AAAD), (15, 0xD35A2D97 - 2**32))
MASK = 2**32 - 1


@dataclass(frozen=True)
class Nvfp4Options:
    """The parts of NVIDIA's recipe that can be left out."""

    hadamard: bool = True
    stochastic: bool = True
    two_dimensional: bool = True


def round_e2m1(x: Tensor, noise: Tensor | None = None) -> Tensor:
    """x (float32) as a number of E2M1: ±0, 0.5, 1, 1.5, 2, 3, 4 or 6, beyond them ±6.

    To the nearest, ties to even; with noise from [0, 1) up where the share of the step exceeds 1 - noise.
    """
    size = x.abs().clamp(max=LARGEST_E2M1)
    step = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    steps = size / step
    steps = steps.round() if noise is None else (steps + noise).floor()
    return (steps * step).copysign(x)


def round_e4m3(x: Tensor) -> Tensor:
    """x (float32, 0 … 448) as the nearest number of E4M3, ties to even. By its bits: not every GPU that can run the
    rest converts to torch.float8_e4m3fn."""
    bits = x.view(torch.int32)
    dropped = 20  # of float32's 23 bits of mantissa
    nearest = (bits + (2 ** (dropped - 1) - 1) + ((bits >> dropped) & 1)) & -(2**dropped)
    return torch.where(x < 2.0**-6, (x * 512).round() / 512, nearest.view(torch.float32))


def fingerprint(x: Tensor) -> Tensor:
    """An integer (int64 scalar) that every bit of x enters: a seed that needs no state, so that a resumed run and a
    recomputed layer round as before. Integers add up alike in any order, on any device."""
    return x.float().view(torch.int32).sum(dtype=torch.int64)


def uniform(shape: torch.Size, seed: Tensor) -> Tensor:
    """Numbers of [0, 1) in float32, each a hash of its index and the seed (int64 scalar)."""
    index = torch.arange(shape.numel(), device=seed.device).view(shape)
    return (_hash(index ^ _hash(seed & MASK)) >> (32 - NOISE_BITS)).float() * 2.0**-NOISE_BITS


def _hash(bits: Tensor) -> Tensor:
    for shift, factor in ROUNDS:
        bits = ((bits ^ (bits >> shift)) * factor) & MASK
    return bits ^ (bits >> 15)


def quantize(x: Tensor, block: tuple[int, int], seed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x (R, C), cut into blocks (rows, columns) -> its entries without the tensor's scale (R, C) in bf16, exactly, and
    that scale (float32 scalar); x ≈ entries × scale. With a seed gradients are rounded by chance.

    In the order of operations of Transformer Engine's reference, so that ties fall alike.
    """
    rows, columns = block
    blocks = x.float().reshape(len(x) // rows, rows, x.shape[1] // columns, columns)
    size = blocks.abs()
    largest = size.amax().clamp(min=TINY)
    encode = torch.full_like(largest, RANGE) / largest  # a plain number over a tensor would be rounded twice
    decode = 1 / encode
    scale = round_e4m3((size.amax((1, 3), keepdim=True) * (encode * (1 / LARGEST_E2M1))).clamp(max=LARGEST_E4M3))
    factor = torch.where(scale > 0, 1 / (scale * decode), 0.0)
    noise = None if seed is None else uniform(blocks.shape, seed)
    entries = round_e2m1(blocks * factor, noise) * scale
    return entries.to(torch.bfloat16).reshape(x.shape), decode


def hadamard_matrix() -> Tensor:
    """The random Hadamard transform (16, 16) in float32, an orthogonal matrix of ±1/4."""
    matrix = torch.ones(1, 1)
    while len(matrix) < BLOCK:
        matrix = torch.cat((torch.cat((matrix, matrix), dim=1), torch.cat((matrix, -matrix), dim=1)))
    signs = torch.randint(0, 2, (BLOCK,), generator=torch.Generator().manual_seed(SIGN_SEED)) * 2 - 1
    return matrix * signs / BLOCK**0.5


def quantize_columns(x: Tensor, hadamard: Tensor | None, seed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """x (R, C), R tokens, cut into blocks of 16 tokens, which the transform mixes; R is filled up with zeros."""
    missing = -len(x) % BLOCK
    if missing:
        x = F.pad(x, (0, 0, 0, missing))
    if hadamard is not None:
        tokens = x.reshape(-1, BLOCK, x.shape[1])
        x = torch.bmm(hadamard.to(x.dtype).expand(len(tokens), -1, -1), tokens).view(x.shape)
    return quantize(x, (BLOCK, 1), seed)


def product(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
    """a (M, K) times b (K, N), bf16 entries, times both tensors' scales -> (M, N) in float32."""
    if a.is_cuda:
        return torch.mm(a, b, out_dtype=torch.float32) * scale
    return a.float() @ b.float() * scale


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, rows, columns, scale, hadamard, stochastic):
        """x (M, K); weight (N, K), for its gradient alone; rows and columns (N, K): it quantised along K and along N,
        None where that is the same."""
        entries, x_scale = quantize(x, (1, BLOCK))
        ctx.save_for_backward(x, rows if columns is None else columns, scale, hadamard)
        ctx.stochastic = stochastic
        return product(entries, rows.mT, x_scale * scale).to(x.dtype)

    @staticmethod
    def backward(ctx, dy):
        x, columns, scale, hadamard = ctx.saved_tensors
        seed = fingerprint(dy) if ctx.stochastic else None
        entries, dy_scale = quantize(dy, (1, BLOCK), seed)
        dx = product(entries, columns, dy_scale * scale).to(x.dtype)
        seed = None if seed is None else seed + 1  # the same gradients, rounded anew
        entries, dy_scale = quantize_columns(dy, hadamard, seed)
        tokens, x_scale = quantize_columns(x, hadamard)
        return dx, product(entries.mT, tokens, dy_scale * x_scale), None, None, None, None, None


class Nvfp4(Format):
    """A product of emulated NVFP4. Activations go in and out in bf16 on a GPU, in float32 on a CPU."""

    def __init__(self, weight: Tensor, options: Nvfp4Options | None = None) -> None:
        """Raises ValueError when a side of the weight (N, K) is no multiple of 16."""
        super().__init__()
        if any(size % BLOCK for size in weight.shape):
            raise ValueError(f"NVFP4 cuts weights into blocks of {BLOCK}: found {tuple(weight.shape)}; keep it in bf16")
        self.options = options or Nvfp4Options()
        names = ("rows",) if self.options.two_dimensional else ("rows", "columns")
        for name in names:
            self.register_buffer(name, torch.empty_like(weight, dtype=torch.bfloat16), persistent=False)
        self.register_buffer("scale", torch.ones((), device=weight.device), persistent=False)
        matrix = hadamard_matrix().to(weight.device) if self.options.hadamard else None
        self.register_buffer("hadamard", matrix, persistent=False)

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        flat = x.flatten(0, -2).to(torch.bfloat16 if x.is_cuda else torch.float32)
        columns = None if self.options.two_dimensional else self.columns
        y = _Product.apply(flat, weight, self.rows, columns, self.scale, self.hadamard, self.options.stochastic)
        return y.view(*x.shape[:-1], len(weight))

    def refresh(self, weight: Tensor) -> None:
        square = self.options.two_dimensional
        rows, scale = quantize(weight, (BLOCK, BLOCK) if square else (1, BLOCK))
        self.rows.copy_(rows)
        self.scale.copy_(scale)
        if not square:
            self.columns.copy_(quantize(weight, (BLOCK, 1))[0])
