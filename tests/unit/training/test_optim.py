"""Muon and AdamW, and which parameter is stepped how."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from model.gpt import GPT
from model.objective import loss_sum
from tests.small_gpt import small_config, small_gpt
from tests.small_job import ALONE, CONFIG
from training.distributed import Ranks
from training.optim.adamw import BETAS, EPSILON, adamw_step
from training.optim.muon import muon_step, orthogonalize
from training.optim.optimizer import Optimizer, groups_of
from training.schedule import momentum

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scalar(value: float) -> Tensor:
    return torch.tensor(value)


# Orthogonalisation


@DTYPES
@pytest.mark.parametrize("shape", [(64, 64), (96, 32), (32, 96), (17, 5), (1, 8), (8, 1), (1, 1)])
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_singular_values_end_near_1(shape: tuple[int, int], size: float, dtype: torch.dtype) -> None:
    x = size * random(1, *shape)
    out = orthogonalize(x, dtype).float()[0]
    relative = torch.linalg.svdvals(x[0]) / x.norm()
    values = torch.linalg.svdvals(out)
    large = values[relative > 3e-3]  # what is far smaller takes more iterations than are worth it
    assert len(large) >= min(shape) - 3
    assert large.min() > 0.7 and values.max() < 1.25


def test_the_singular_vectors_stay() -> None:
    x = random(1, 24, 40)
    left, _, right = torch.linalg.svd(x[0], full_matrices=False)
    turned = left.T @ orthogonalize(x, torch.float32)[0] @ right.T
    assert (turned - turned.diag().diag()).abs().max() < 1e-3
    assert turned.diag().min() > 0.7


@DTYPES
def test_a_rank_deficient_matrix_keeps_its_rank(dtype: torch.dtype) -> None:
    x = random(1, 32, 3) @ random(1, 3, 48, seed=1)
    values = torch.linalg.svdvals(orthogonalize(x, dtype).float()[0])
    assert values[:3].min() > 0.7 and values.max() < 1.25
    if dtype == torch.float32:  # in bf16 the rounding of x is itself a direction, and grows
        assert values[3:].max() < 1e-3


@DTYPES
def test_zero_and_tiny_matrices_give_no_nan(dtype: torch.dtype) -> None:
    assert torch.equal(orthogonalize(torch.zeros(2, 4, 6), dtype), torch.zeros(2, 4, 6, dtype=dtype))
    assert orthogonalize(1e-30 * random(2, 4, 6), dtype).isfinite().all()


@pytest.mark.parametrize("shape", [(16, 24), (24, 16)])
def test_a_stack_is_as_one_by_one(shape: tuple[int, int]) -> None:
    x = random(5, *shape)
    x[2] = 0
    together = orthogonalize(x, torch.float32)
    for number, matrix in enumerate(x):
        torch.testing.assert_close(together[number], orthogonalize(matrix[None], torch.float32)[0], atol=1e-5, rtol=0)


# One step of Muon


def muon(weights: Tensor, gradients: Tensor, steps: int = 1, decay: float = 0.0, rate: float = 0.1) -> Tensor:
    _, rows, columns = weights.shape
    velocity = torch.zeros_like(weights)
    variance = torch.zeros(len(weights), *((rows, 1) if rows >= columns else (1, columns)))
    for _ in range(steps):
        weights = muon_step(
            weights, gradients, velocity, variance, scalar(rate), scalar(0.9), scalar(decay), scalar(1), torch.float32
        )
    return weights


def test_zero_gradients_change_nothing() -> None:
    weights = random(2, 8, 12)
    assert torch.equal(muon(weights, torch.zeros_like(weights), steps=3), weights)


@pytest.mark.parametrize("shape", [(16, 16), (8, 32), (32, 8)])
def test_the_size_of_a_step_depends_on_rate_and_shape_not_on_the_gradient(shape: tuple[int, int]) -> None:
    weights, gradient = random(1, *shape), random(1, *shape, seed=1)
    steps = [muon(weights, size * gradient) - weights for size in (1e-3, 1.0, 1e3)]
    torch.testing.assert_close(steps[0], steps[1], atol=2e-3, rtol=2e-2)
    torch.testing.assert_close(steps[2], steps[1], atol=1e-4, rtol=1e-3)
    expected = 0.1 * min(shape) ** 0.5 * max(1, shape[0] / shape[1]) ** 0.5
    assert steps[1].norm().item() == pytest.approx(expected, rel=0.2)
    assert (steps[1] * gradient).sum() < 0, "downhill"


def test_rows_of_unequal_size_are_evened_out() -> None:
    """NorMuon: after some steps every row of a tall matrix moves about as far."""
    gradient = random(1, 32, 16)
    gradient[:, :4] *= 100
    weights = torch.zeros(1, 32, 16)
    sizes = muon(weights, gradient, steps=20)[0].norm(dim=-1)
    assert sizes.max() / sizes.min() < 1.5


def test_decay_pulls_only_where_the_update_does_too() -> None:
    weights, gradient = random(1, 8, 8), random(1, 8, 8, seed=1)
    plain, decayed = muon(weights, gradient), muon(weights, gradient, decay=0.5)
    moved = (plain - weights) * weights < 0  # the update itself makes the weight smaller
    torch.testing.assert_close(decayed[moved], (plain - 0.1 * 0.5 * weights)[moved])
    assert torch.equal(decayed[~moved], plain[~moved])


# AdamW


def test_adamw_is_torchs() -> None:
    ours = random(50)
    theirs = torch.nn.Parameter(ours.clone())
    reference = torch.optim.AdamW([theirs], lr=0.03, betas=BETAS, eps=EPSILON, weight_decay=0)
    mean, square = torch.zeros(50), torch.zeros(50)
    for step in range(1, 11):
        gradient = random(50, seed=step) * (step % 3)
        corrections = tuple(scalar(1 - beta**step) for beta in BETAS)
        adamw_step(ours, 4 * gradient, mean, square, scalar(0.03), corrections, scalar(0.25), EPSILON)
        theirs.grad = gradient
        reference.step()
        torch.testing.assert_close(ours, theirs.detach(), atol=1e-6, rtol=1e-5)


# The optimizer of a model


def fill_gradients(model: GPT, seed: int = 5) -> None:
    for number, parameter in enumerate(model.parameters()):
        parameter.grad = random(*parameter.shape, seed=seed + number)


@pytest.mark.parametrize("changes", [{}, {"heads": 4, "kv_heads": 2}, {"value_layers": ()}, {"width": 48, "heads": 3}])
def test_every_weight_is_in_one_group_exactly_once(changes: dict) -> None:
    model = small_gpt(**changes)
    counts = {id(parameter): torch.zeros(parameter.shape) for parameter in model.parameters()}
    for group in groups_of(model, CONFIG):
        for piece in group.pieces:
            piece.of(counts[id(piece.parameter)]).add_(1)
    for name, parameter in model.named_parameters():
        assert (counts[id(parameter)] == 1).all(), name


def test_matrices_go_to_muon_and_the_rest_to_adamw_at_their_ratios() -> None:
    groups = {group.name: group for group in groups_of(small_gpt(heads=4, kv_heads=2), CONFIG)}
    found = {name: (group.kind, group.ratio) for name, group in groups.items()}
    assert found == {
        "residual_scale": ("adamw", CONFIG.scalar_ratio),
        "skip_scale": ("adamw", CONFIG.scalar_ratio),
        "embedding.weight": ("adamw", CONFIG.embedding_ratio),
        "value_embeddings.1.weight": ("adamw", CONFIG.value_embedding_ratio),
        "blocks.1.attention.gate.weight": ("adamw", CONFIG.scalar_ratio),
        "head.weight": ("adamw", CONFIG.head_ratio),
        "matrices_32x32": ("muon", 1.0),  # q and out of two layers
        "matrices_16x32": ("muon", 1.0),  # k and v
        "matrices_64x32": ("muon", 1.0),
        "matrices_32x64": ("muon", 1.0),
    }
    assert [len(groups[f"matrices_{shape}"].pieces) for shape in ("32x32", "16x32", "64x32", "32x64")] == [4, 4, 2, 2]


def test_queries_keys_and_values_are_three_matrices() -> None:
    model = small_gpt(heads=4, kv_heads=2)
    fused = model.blocks[0].attention.qkv.weight
    before = fused.detach().clone()
    fill_gradients(model)
    gradient = fused.grad.clone()
    Optimizer(model, CONFIG, ALONE, torch.float32).step(1.0)
    for start, stop in ((0, 32), (32, 48), (48, 64)):
        rows, columns = stop - start, 32
        expected = muon_step(
            before[None, start:stop],
            gradient[None, start:stop],
            torch.zeros(1, rows, columns),
            torch.zeros(1, *((rows, 1) if rows >= columns else (1, columns))),
            scalar(CONFIG.learning_rate),
            scalar(momentum(0, CONFIG)),
            scalar(CONFIG.weight_decay),
            scalar(1),
            torch.float32,
        )[0]
        torch.testing.assert_close(fused.detach()[start:stop], expected, atol=1e-6, rtol=1e-5)


def test_a_scale_of_zero_moves_nothing() -> None:
    model = small_gpt()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    fill_gradients(model)
    Optimizer(model, CONFIG, ALONE, torch.float32).step(0.0)
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())


def test_a_step_moves_every_parameter_by_its_rate() -> None:
    """AdamW's first step moves each weight by its learning rate exactly."""
    model = small_gpt()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    fill_gradients(model)
    config = replace(CONFIG, weight_decay=0.0)
    Optimizer(model, config, ALONE, torch.float32).step(0.5)
    for name, parameter in model.named_parameters():
        moved = (parameter.detach() - before[name]).abs()
        assert moved.max() > 0, name
        if name == "head.weight":
            torch.testing.assert_close(
                moved, torch.full_like(moved, 0.5 * 0.02 * CONFIG.head_ratio), atol=1e-6, rtol=1e-3
            )


def test_training_lowers_the_loss() -> None:
    model = GPT(small_config())
    model.initialize(0)
    optimizer = Optimizer(model, CONFIG, ALONE, torch.float32)
    ids = torch.arange(33).remainder(7)[None].expand(4, -1)
    losses = []
    for _ in range(30):
        loss = loss_sum(model, ids[:, :-1], ids[:, 1:]) / (4 * 32)
        loss.backward()
        optimizer.step(1.0)
        model.zero_grad()
        losses.append(loss.item())
    assert losses[0] > 4 and losses[-1] < 0.2


@given(length=st.integers(0, 2000), world=st.integers(1, 40))
def test_ranks_share_any_length_exactly_once(length: int, world: int) -> None:
    shares = [Ranks(rank, world, torch.device("cpu")).share(length) for rank in range(world)]
    assert [at for start, stop in shares for at in range(start, stop)] == list(range(length))
    sizes = [stop - start for start, stop in shares if stop > start]
    assert sizes == [len(chunk) for chunk in torch.arange(length).chunk(world) if len(chunk)], "as torch.chunk cuts"
