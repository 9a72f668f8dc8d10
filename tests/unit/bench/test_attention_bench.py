"""bench.attention on a CPU: rows and refusals, and the work and traffic that they are held against."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench import attention
from bench.attention import Shape, floor_ms
from config.errors import UserError
from model.attention.backends import BACKENDS, causal_mask

CPU = torch.device("cpu")


def printed(capsys, *options: str) -> dict:
    attention.main(["--json", "--repeats", "1", *options])
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def test_every_backend_is_timed_or_refused(capsys) -> None:
    found = printed(capsys, "--batch", "1", "--seq", "64", "--window", "16")
    assert found["bench"] == "attention" and found["copy_gbps"] == 10.0
    assert [(row["backend"], row["window"]) for row in found["rows"]] == [("sdpa", 64), ("sdpa", 16)]
    for row in found["rows"]:
        pairs = causal_mask(64, 64, row["window"], CPU).sum().item()
        work = 14 * 32 * 1 * 2 * pairs  # FLOPs a pair of positions, head and row
        assert row["tflops"] == pytest.approx(work / row["ms"] / 1e9, rel=2e-3)
        assert row["share_of_ceiling"] == pytest.approx(row["tflops"] / 0.25, rel=2e-3)
        assert row["forward_ms"] > 0 and row["floor_ms"] > 0
    refused = {row["backend"]: row["reason"] for row in found["refused"]}
    assert set(refused) == set(BACKENDS) - {"sdpa"}
    assert refused["fa4"] == "needs a CUDA GPU" and "without torch.compile" in refused["matmul"]


def test_a_window_of_all_is_one_row(capsys) -> None:
    found = printed(capsys, "--seq", "32", "--window", "100", "--heads", "4", "--kv-heads", "2", "--backends", "sdpa")
    assert [row["window"] for row in found["rows"]] == [32] and found["kv_heads"] == 2


@given(seq=st.integers(1, 64), window=st.integers(1, 64))
def test_work_is_that_of_the_pairs_in_the_mask(seq: int, window: int) -> None:
    window = min(window, seq)
    pairs = causal_mask(seq, seq, window, CPU).sum().item()
    assert Shape(3, seq, 5, 5, 7, window, torch.float32).flops == (4 * 7 * 15 * pairs, 14 * 7 * 15 * pairs)


def test_the_floor_is_work_or_traffic() -> None:
    shape = Shape(2, 8, 4, 2, 16, 8, torch.bfloat16)
    assert shape.traffic == 2 * (6 * 2 * 8 * 4 * 16 + 6 * 2 * 8 * 2 * 16)
    assert floor_ms(shape, 1e-3, 1e9) == pytest.approx(shape.flops[1] / 1e-3 / 1e9)
    assert floor_ms(shape, 1e9, 1e-3) == pytest.approx(shape.traffic / 1e-3 / 1e6)


def test_inputs_lie_as_in_the_model() -> None:
    q, k, v, gradient = Shape(2, 8, 4, 2, 16, 8, torch.bfloat16).inputs(CPU)
    assert q.is_contiguous() and k.is_contiguous() and gradient.shape == q.shape
    assert v.stride() == (8 * 8 * 16, 8 * 16, 16, 1)
    assert all(x.requires_grad and x.is_leaf for x in (q, k, v))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--backends", "sdpa,fa9"], "--backends has fa9; expected some of fa4, fa3"),
        (["--heads", "4", "--kv-heads", "3"], "4 heads cannot share 3 key-value heads evenly"),
    ],
)
def test_wrong_options_say_what_was_expected(options: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        attention.main(options)
