"""Limits that take no time to measure: what a benchmark does with them is what is tested."""

import pytest

from bench import timing
from hardware.limits import Limits


@pytest.fixture(autouse=True)
def fixed_limits(monkeypatch) -> Limits:
    found = Limits(bf16_tflops=0.5, fp8_tflops=1.0, fp32_tflops=0.25, copy_gbps=10.0, read_gbps=12.0)
    monkeypatch.setattr(timing.limits, "measure", lambda device: found)
    return found
