"""Loss: a sum over targets, whatever the chunks, and nothing at all from what is masked."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from model import loss, objective
from model.gpt import GPT
from model.loss import IGNORE, token_losses
from model.objective import loss_sum
from tests.small_gpt import small_gpt


def batch(rows: int = 5, length: int = 16) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 64, (rows, length), generator=generator)
    targets = torch.randint(0, 64, (rows, length), generator=generator)
    targets[torch.rand(rows, length, generator=generator) < 0.3] = IGNORE
    return ids, targets


def gradients(model: GPT, ids: Tensor, targets: Tensor) -> tuple[float, list[Tensor]]:
    model.zero_grad(set_to_none=True)
    total = loss_sum(model, ids, targets)
    total.backward()
    return total.item(), [parameter.grad.clone() for parameter in model.parameters()]


def test_is_the_sum_of_cross_entropies_of_unmasked_targets() -> None:
    model, (ids, targets) = small_gpt(), batch()
    with torch.no_grad():
        log_probabilities = model.logits(model(ids)).log_softmax(-1)
    kept = targets != IGNORE
    expected = -log_probabilities[kept].gather(1, targets[kept][:, None]).sum()
    torch.testing.assert_close(loss_sum(model, ids, targets), expected)
    losses = token_losses(model, model(ids), targets)
    assert losses.shape == targets.shape and (losses[~kept] == 0).all() and (losses[kept] > 0).all()


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_chunks_change_neither_loss_nor_gradients(monkeypatch, rows: int) -> None:
    model, (ids, targets) = small_gpt(), batch()
    expected, expected_gradients = gradients(model, ids, targets)
    monkeypatch.setattr(objective, "CHUNK_LOGITS", rows * ids.shape[1] * 64)
    found, found_gradients = gradients(model, ids, targets)
    assert found == pytest.approx(expected, rel=1e-6)
    for ours, theirs in zip(found_gradients, expected_gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_a_row_longer_than_a_chunk_is_computed_alone(monkeypatch) -> None:
    model, (ids, targets) = small_gpt(), batch()
    expected = loss_sum(model, ids, targets).item()
    monkeypatch.setattr(objective, "CHUNK_LOGITS", 1)
    assert loss_sum(model, ids, targets).item() == pytest.approx(expected, rel=1e-6)


def test_no_more_than_a_chunk_of_logits_exists_at_once(monkeypatch) -> None:
    model, (ids, targets) = small_gpt(), batch()
    sizes: list[int] = []
    cross_entropy = F.cross_entropy

    def noted(logits: Tensor, *args, **kwargs) -> Tensor:
        sizes.append(len(logits))
        return cross_entropy(logits, *args, **kwargs)

    monkeypatch.setattr(loss.F, "cross_entropy", noted)
    gradients(model, ids, targets)
    assert sizes == [5 * 16], "a batch that fits is computed once, and not again in the backward pass"
    sizes.clear()
    monkeypatch.setattr(objective, "CHUNK_LOGITS", 2 * 16 * 64)
    gradients(model, ids, targets)
    assert sorted(sizes) == sorted([32, 32, 16] * 2), "each chunk once forward, once more backward"


@pytest.mark.parametrize("chunk_rows", [1, 100])
def test_an_all_masked_batch_is_nothing(monkeypatch, chunk_rows: int) -> None:
    model, (ids, targets) = small_gpt(), batch()
    monkeypatch.setattr(objective, "CHUNK_LOGITS", chunk_rows * 16 * 64)
    total, all_gradients = gradients(model, ids, torch.full_like(targets, IGNORE))
    assert total == 0
    assert all((gradient == 0).all() for gradient in all_gradients)


def test_a_masked_row_adds_nothing_to_the_others() -> None:
    model, (ids, targets) = small_gpt(), batch()
    targets[2] = IGNORE
    with_row, gradients_with = gradients(model, ids, targets)
    keep = [0, 1, 3, 4]
    without, gradients_without = gradients(model, ids[keep], targets[keep])
    assert with_row == pytest.approx(without, rel=1e-6)
    for ours, theirs in zip(gradients_with, gradients_without, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_a_hopeless_guess_costs_a_bounded_loss() -> None:
    """The cap bounds a single loss, so no token can blow up an update."""
    model, (ids, targets) = small_gpt(), batch()
    with torch.no_grad():
        model.head.weight.mul_(1e4)
    worst = token_losses(model, model(ids), targets).max().item()
    assert math.isfinite(worst) and worst <= 2 * 15 + math.log(64)
