"""Bits per byte: counted from the tokens' own bytes, masked and markless targets left out."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from evals.bits_per_byte import bits_per_byte, evenly
from tests.small_gpt import small_gpt
from tests.small_job import CONTEXT, VOCAB, MemoryRows


@given(st.integers(0, 500), st.integers(1, 600))
def test_rows_are_chosen_once_and_within_the_limit(count: int, limit: int) -> None:
    chosen = evenly(count, limit)
    assert len(chosen) == min(count, limit) == len(set(chosen.tolist()))
    assert all(0 <= index < count for index in chosen)


def test_equals_the_sum_written_out() -> None:
    model = small_gpt(vocab_size=VOCAB, context=CONTEXT, windows=(8, CONTEXT))
    rows = MemoryRows(count=7)
    lengths = np.arange(VOCAB) % 4  # every fourth token is a mark, without bytes
    nats, size, loss, targets = 0.0, 0, 0.0, 0
    for row in range(7):
        ids = torch.from_numpy(rows.ids(np.array([row])))
        with torch.no_grad():
            logs = model.logits(model(ids[:, :-1])).log_softmax(-1)[0]
        for at, target in enumerate(ids[0, 1:].tolist()):
            if rows.mask(np.array([row]))[0, at + 1]:
                loss, targets = loss - logs[at, target].item(), targets + 1
                if lengths[target]:
                    nats, size = nats - logs[at, target].item(), size + int(lengths[target])
    figures = bits_per_byte(model, rows, lengths, limit=100)
    assert figures["bytes"] == size
    assert figures["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert figures["loss"] == pytest.approx(loss / targets, rel=1e-5)


def test_no_target_is_no_number() -> None:
    model = small_gpt(vocab_size=VOCAB, context=CONTEXT, windows=(8, CONTEXT))
    figures = bits_per_byte(model, MemoryRows(count=2, masked=[0, 1]), np.ones(VOCAB, int), limit=9)
    assert math.isnan(figures["bits_per_byte"]) and figures["bytes"] == 0
