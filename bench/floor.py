"""What one update takes at least: its work at the device's measured limits, each part as if nothing else ran.

A model of the work, not of any program. Matrix products at the ceiling of their number format; attention at bf16's;
what lies between two products, and the loss between the head's, as one pass over memory at the copy's bandwidth. A
program that fuses a pass into a product does better than this floor there.
"""

from bench import loss, optimizer
from bench.step import Step
from bench.timing import ceiling_of, number_format
from model.config import GPTConfig, matmul_parameters

BF16_BYTES = 2


def matmul_flops(config: GPTConfig) -> int:
    """Of the matrices, a token, forward and backward: 2 FLOPs a weight, three times."""
    return 6 * matmul_parameters(config)


def attention_flops(config: GPTConfig, length: int) -> tuple[float, float]:
    """(forward, backward) FLOPs of attention a token in rows of `length`, over the positions that are attended alone:
    two products forward, five backward (arXiv 2205.14135), of 2 D FLOPs a pair of positions and head."""
    pairs = sum(attended_pairs(length, min(window, length)) for window in config.windows) / length
    product = 2 * config.heads * config.head_dim * pairs
    return 2 * product, 5 * product


def attended_pairs(length: int, window: int) -> int:
    """Pairs of positions in a row of `length`, each attending to itself and up to window - 1 before it."""
    return length * window - window * (window - 1) // 2


def pass_bytes(config: GPTConfig) -> int:
    """Bytes a token of one bf16 pass between any two products of a layer, forward and backward, over all layers.

    Forward, in numbers: rotary and norm of queries and keys, values passed on (qkv read and written); the sum into the
    stream with the norm that follows, twice (stream and output read, stream and normed written); ReLU² (read, written).
    Backward reads the gradient and what was kept, and writes the gradient.
    """
    qkv = (config.heads + 2 * config.kv_heads) * config.head_dim
    queries_keys = (config.heads + config.kv_heads) * config.head_dim
    forward = 2 * qkv + 2 * 4 * config.width + 2 * config.mlp_width
    backward = 2 * qkv + queries_keys + 2 * 4 * config.width + 3 * config.mlp_width
    return BF16_BYTES * config.layers * (forward + backward)


def floor_parts(step: Step, limits: dict[str, float | None]) -> dict[str, float]:
    """Milliseconds of one update by class, as bench.breakdown names them.

    Where the device has no ceiling for the recipe's products (nvfp4), bf16's stands in for it.
    """
    config, recipe = step.config, step.parts.recipe.name
    tokens = step.accum * step.rows.count
    bf16, gbps = limits["ceiling_bf16_tflops"], limits["copy_gbps"]
    ceiling = ceiling_of(recipe, limits) or bf16
    forward, backward = attention_flops(config, step.rows.seq)
    # The head's products stand with the other matrices, so of the loss only its pass over the logits is left.
    gradient_bytes = 1 if number_format(recipe) == "fp8" else BF16_BYTES
    return {
        "matrix multiply": tokens * matmul_flops(config) / ceiling / 1e9,
        "attention forward": tokens * forward / bf16 / 1e9,
        "attention backward": tokens * backward / bf16 / 1e9,
        "norm, pointwise": tokens * pass_bytes(config) / gbps / 1e6,
        "loss": loss.pass_ms(tokens, config.vocab_size, gbps, gradient_bytes),
        "optimizer": optimizer.floor_ms(step.parts.optimizer.groups, bf16, gbps),
    }
