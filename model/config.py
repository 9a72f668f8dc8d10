"""The section `model:` of a profile, and the exact shape it resolves to. Imports no torch."""

from dataclasses import asdict, dataclass
from typing import Any, Literal

from config.schema import section

HEAD_DIM = 128  # of models sized by depth


@section
class ModelConfig:
    """What the GPT is: sized by one depth dial, or by width, layers and heads outright."""

    depth: int | None = None
    width: int | None = None
    layers: int | None = None
    heads: int | None = None
    kv_heads: int | None = None  # fewer than heads: grouped-query attention
    mlp_ratio: int = 4
    window_pattern: str = "SSSL"  # a letter a layer, repeated: S attends to a quarter of the context, L to all of it
    value_embeddings: bool = True
    softcap: float = 15.0
    rope_base: float = 100_000.0
    precision: Literal["auto", "bf16", "fp32", "fp8", "te-fp8", "te-fp8-delayed", "te-nvfp4", "nvfp4-emulated"] = "auto"
    attention: Literal["auto", "fa4", "fa3", "fa2", "varlen", "flex", "cudnn", "sdpa", "matmul"] = "auto"
    recompute_pattern: str = (
        "K"  # a letter a layer, repeated: K keeps its activations, R computes them again: less memory
    )
    compile: Literal["auto", "on", "off"] = "auto"  # auto: on where a C++ compiler or a GPU is there

    def __post_init__(self) -> None:
        outright = (self.width, self.layers, self.heads)
        if self.depth is None and None in outright:
            raise ValueError("give `depth`, or all of `width`, `layers` and `heads`")
        if self.depth is not None and any(value is not None for value in outright):
            raise ValueError("`depth` sets width, layers and heads; give one or the others, not both")
        if not self.window_pattern or set(self.window_pattern) - {"S", "L"}:
            raise ValueError(f"window_pattern is {self.window_pattern!r}; expected letters S and L, as in SSSL")
        if not self.recompute_pattern or set(self.recompute_pattern) - {"K", "R"}:
            raise ValueError(f"recompute_pattern is {self.recompute_pattern!r}; expected letters K and R, as in KKR")
        if self.precision == "te-fp8-delayed" and "R" in self.recompute_pattern:
            raise ValueError(
                "te-fp8-delayed can't compute layers again: set recompute_pattern to K, or precision to te-fp8"
            )
        if min(value for value in (*outright, self.depth, self.mlp_ratio, self.kv_heads) if value is not None) < 1:
            raise ValueError("depth, width, layers, heads, kv_heads and mlp_ratio are at least 1")
        if self.heads and self.width and (self.width % self.heads or (self.width // self.heads) % 2):
            raise ValueError(f"width {self.width} over {self.heads} heads must be an even head size")
        heads = self.heads or round_up(64 * self.depth, HEAD_DIM) // HEAD_DIM
        if self.kv_heads and heads % self.kv_heads:
            raise ValueError(f"{heads} heads cannot share {self.kv_heads} key-value heads evenly")
        if not (0 < self.softcap < float("inf") and 1 < self.rope_base < float("inf")):
            raise ValueError(f"softcap is {self.softcap}, rope_base {self.rope_base}; expected above 0 and above 1")


@dataclass(frozen=True)
class GPTConfig:
    """The exact shape of a GPT, as published beside its weights."""

    vocab_size: int
    context: int
    layers: int
    width: int
    heads: int
    kv_heads: int
    mlp_width: int
    windows: tuple[int, ...]  # tokens each layer may look back over, itself included; context = all
    value_layers: tuple[int, ...]  # layers that have value embeddings
    softcap: float = 15.0
    rope_base: float = 100_000.0

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "GPTConfig":
        """Raises TypeError or KeyError when keys are missing or unknown."""
        return cls(**values | {"windows": tuple(values["windows"]), "value_layers": tuple(values["value_layers"])})


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple of `multiple` that is at least `value`."""
    return -(-value // multiple) * multiple


def shape(config: ModelConfig, vocab_size: int, context: int) -> GPTConfig:
    """Resolve a profile's model section for a vocabulary and a context length (tokens)."""
    if config.depth is not None:
        layers = config.depth
        width = round_up(64 * layers, HEAD_DIM)
        heads = width // HEAD_DIM
    else:
        layers, width, heads = config.layers, config.width, config.heads
    short = min(context, round_up(-(-context // 4), 128))
    pattern = config.window_pattern
    windows = [context if pattern[layer % len(pattern)] == "L" else short for layer in range(layers)]
    windows[-1] = context
    # Every other layer, counted from the last, which always has one.
    value_layers = (
        tuple(layer for layer in range(layers) if (layers - 1 - layer) % 2 == 0) if config.value_embeddings else ()
    )
    return GPTConfig(
        vocab_size=vocab_size,
        context=context,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=config.kv_heads or heads,
        mlp_width=config.mlp_ratio * width,
        windows=tuple(windows),
        value_layers=value_layers,
        softcap=config.softcap,
        rope_base=config.rope_base,
    )


def matmul_parameters(config: GPTConfig) -> int:
    """Parameters that every token is multiplied with: the matrices of all layers and the head."""
    attention = config.width * config.head_dim * (2 * config.heads + 2 * config.kv_heads)
    mlp = 2 * config.width * config.mlp_width
    return config.layers * (attention + mlp) + config.vocab_size * config.width


def flops_per_token(config: GPTConfig) -> int:
    """Training FLOPs a token, forward and backward: 6 a matrix parameter, plus 12 a head dimension and attended
    position (PaLM, arXiv 2204.02311, appendix B; the causal half is not subtracted, so figures compare with published
    ones), windows counted at their size."""
    attention = sum(12 * config.heads * config.head_dim * min(window, config.context) for window in config.windows)
    return 6 * matmul_parameters(config) + attention
