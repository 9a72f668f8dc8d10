"""An assembled model computes the same bits each time: what resuming to the same weights rests on."""

import pytest
import torch

from model.config import ModelConfig, shape
from tests.small_job import ALONE, CONFIG
from training.assemble import assemble, can_compile

CONTEXT, VOCAB = 128, 64


@pytest.fixture
def two_threads():
    before = torch.are_deterministic_algorithms_enabled()
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(before)


@pytest.mark.skipif(not can_compile(torch.device("cpu")), reason="needs a C++ compiler")
def test_compiled_gradients_are_the_same_bits_each_time(two_threads) -> None:
    """Few tokens of a small vocabulary: many rows add to the same embedding, from both threads."""
    wanted = ModelConfig(width=64, layers=2, heads=2, window_pattern="L", precision="fp32", compile="on")
    parts = assemble(wanted, shape(wanted, VOCAB, CONTEXT), CONFIG, ALONE, None)
    ids = torch.randint(0, VOCAB, (16, CONTEXT + 1), generator=torch.Generator().manual_seed(0))
    seen = set()
    for _ in range(8):
        parts.model.zero_grad()
        parts.loss_sum(ids[:, :-1].contiguous(), ids[:, 1:].contiguous()).backward()
        seen.add(b"".join(parameter.grad.numpy().tobytes() for parameter in parts.model.parameters()))
    assert len(seen) == 1
