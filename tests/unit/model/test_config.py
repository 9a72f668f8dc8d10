"""The depth dial, the windows, and the sizes that compare with published models."""

import pytest
import torch

from model.config import GPTConfig, ModelConfig, flops_per_token, matmul_parameters, shape
from model.gpt import GPT
from model.linear import Linear

VOCAB, CONTEXT = 32_768, 2_048


def count(config: GPTConfig) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in GPT(config).parameters())


@pytest.mark.parametrize(("depth", "millions"), [(20, 896.5), (24, 1_384.1)])
def test_published_sizes(depth: int, millions: float) -> None:
    assert count(shape(ModelConfig(depth=depth), VOCAB, CONTEXT)) / 1e6 == pytest.approx(millions, abs=0.05)


def test_depth_20_multiplies_435_million() -> None:
    assert matmul_parameters(shape(ModelConfig(depth=20), VOCAB, CONTEXT)) / 1e6 == pytest.approx(435, abs=0.5)


@pytest.mark.parametrize(
    "config",
    [
        ModelConfig(depth=4),
        ModelConfig(width=96, layers=3, heads=3, kv_heads=1, mlp_ratio=2),
        ModelConfig(width=64, layers=2, heads=2, value_embeddings=False),
    ],
)
def test_matmul_parameters_are_those_of_the_linear_layers(config: ModelConfig) -> None:
    resolved = shape(config, 300, 256)
    with torch.device("meta"):
        model = GPT(resolved)
    linear = sum(
        module.weight.numel()
        for name, module in model.named_modules()
        if isinstance(module, Linear) and not name.endswith("gate")
    )
    assert matmul_parameters(resolved) == linear


@pytest.mark.parametrize(
    ("depth", "width", "heads"), [(1, 128, 1), (2, 128, 1), (3, 256, 2), (12, 768, 6), (20, 1280, 10), (24, 1536, 12)]
)
def test_depth_dial(depth: int, width: int, heads: int) -> None:
    resolved = shape(ModelConfig(depth=depth), VOCAB, CONTEXT)
    assert (resolved.layers, resolved.width, resolved.heads, resolved.kv_heads) == (depth, width, heads, heads)
    assert resolved.head_dim == 128 and resolved.mlp_width == 4 * width


def test_windows_follow_the_pattern_and_the_last_layer_sees_everything() -> None:
    assert shape(ModelConfig(depth=6), VOCAB, CONTEXT).windows == (512, 512, 512, 2048, 512, 2048)
    assert shape(ModelConfig(depth=3, window_pattern="S"), VOCAB, CONTEXT).windows == (512, 512, 2048)
    assert shape(ModelConfig(depth=3, window_pattern="L"), VOCAB, CONTEXT).windows == (2048,) * 3


@pytest.mark.parametrize(("context", "short"), [(64, 64), (256, 128), (513, 256), (2048, 512), (2049, 640)])
def test_a_short_window_is_a_quarter_rounded_up_to_128(context: int, short: int) -> None:
    assert shape(ModelConfig(depth=2), VOCAB, context).windows == (short, context)


@pytest.mark.parametrize(("layers", "expected"), [(1, (0,)), (2, (1,)), (5, (0, 2, 4)), (6, (1, 3, 5))])
def test_alternate_layers_have_value_embeddings_the_last_always(layers: int, expected: tuple[int, ...]) -> None:
    assert shape(ModelConfig(width=64, layers=layers, heads=1), 300, 64).value_layers == expected


def test_flops_count_six_a_matrix_parameter_and_windows_at_their_size() -> None:
    full = shape(ModelConfig(width=64, layers=2, heads=2, window_pattern="L"), 300, 512)
    short = shape(ModelConfig(width=64, layers=2, heads=2, window_pattern="SL"), 300, 512)
    assert flops_per_token(full) == 6 * matmul_parameters(full) + 2 * 12 * 64 * 512
    assert flops_per_token(full) - flops_per_token(short) == 12 * 64 * (512 - 128)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"width": 64, "layers": 2},
        {"depth": 4, "width": 64},
        {"depth": 0},
        {"width": 65, "layers": 2, "heads": 2},
        {"width": 66, "layers": 2, "heads": 2},  # a head size of 33 can't be rotated
        {"width": 64, "layers": 2, "heads": 4, "kv_heads": 3},
        {"depth": 12, "kv_heads": 4},  # 6 heads
        {"depth": 4, "window_pattern": "SX"},
        {"depth": 4, "window_pattern": ""},
        {"depth": 4, "softcap": 0.0},
        {"depth": 4, "rope_base": float("inf")},
    ],
)
def test_impossible_combinations(wrong: dict) -> None:
    with pytest.raises(ValueError):
        ModelConfig(**wrong)


def test_json_round_trip() -> None:
    config = shape(ModelConfig(depth=3, kv_heads=1), VOCAB, CONTEXT)
    assert GPTConfig.from_json(config.to_json()) == config
