"""Probes of a device: positive and finite, FLOPs and bytes counted right, nothing random disturbed."""

import math

import pytest
import torch

from hardware import limits
from hardware.limits import Limits, copy_gbps, durations_ms, matmul_tflops, measure, normal, read_gbps

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def quick(monkeypatch) -> None:
    monkeypatch.setattr(limits, "BUDGET_MS", 5.0)
    monkeypatch.setattr(limits, "PRODUCT_SIZE", {"cpu": 128})
    monkeypatch.setattr(limits, "TRAFFIC_BYTES", {"cpu": 2**20})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_product_has_a_positive_finite_rate(dtype: torch.dtype) -> None:
    found = matmul_tflops(CPU, dtype)
    assert 0 < found < 1e3 and math.isfinite(found)


@pytest.mark.parametrize("dtype", limits.FP8)
def test_a_device_without_fp8_says_so(dtype: torch.dtype) -> None:
    assert matmul_tflops(CPU, dtype) is None


@pytest.mark.parametrize("probe", [copy_gbps, read_gbps])
def test_traffic_is_positive_and_finite(probe) -> None:
    found = probe(CPU)
    assert 0 < found < 1e5 and math.isfinite(found)


def test_measure_gives_all_limits() -> None:
    found = measure(CPU)
    assert isinstance(found, Limits) and found.fp8_tflops is None
    assert min(found.bf16_tflops, found.fp32_tflops, found.copy_gbps, found.read_gbps) > 0


def test_flops_and_bytes_are_counted_right(monkeypatch) -> None:
    monkeypatch.setattr(limits, "typical_ms", lambda function, device: 2.0)
    assert matmul_tflops(CPU, torch.float32, 100) == pytest.approx(2 * 100**3 / 2e-3 / 1e12)
    assert copy_gbps(CPU, 4_000_000) == pytest.approx(2 * 4e6 / 2e-3 / 1e9)
    assert read_gbps(CPU, 4_000_000) == pytest.approx(4e6 / 2e-3 / 1e9)


def test_each_repeat_is_timed_and_the_warmup_is_not(monkeypatch) -> None:
    now = iter([0.0, 1.0, 3.0, 6.0])
    monkeypatch.setattr(limits.time, "perf_counter", lambda: next(now))
    calls = []
    assert durations_ms(lambda: calls.append(None), CPU, warmup=2, repeats=3) == [1e3, 2e3, 3e3]
    assert len(calls) == 5


def test_fast_calls_are_repeated_within_the_budget(monkeypatch) -> None:
    counts = []

    def durations(function, device, warmup: int, repeats: int) -> list[float]:
        counts.append(repeats)
        return [1.0] * repeats

    monkeypatch.setattr(limits, "durations_ms", durations)
    monkeypatch.setattr(limits, "BUDGET_MS", 50.0)
    assert limits.typical_ms(lambda: None, CPU) == 1.0
    assert counts == [1, 50]


def test_a_probe_draws_nothing_from_the_common_generator() -> None:
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    read_gbps(CPU)
    assert torch.equal(torch.rand(1), expected)


def test_operands_are_random_and_differ_by_seed() -> None:
    first, second = (normal((1000,), torch.bfloat16, CPU, 2.0, seed).float() for seed in (0, 1))
    assert first.std() == pytest.approx(2.0, rel=0.2)
    assert not torch.equal(first, second)
    assert torch.equal(first, normal((1000,), torch.bfloat16, CPU, 2.0).float())
