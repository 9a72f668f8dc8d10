"""What this device can do, measured: matrix products and memory traffic, the limits that speed is held against.

Short probes, some tenths of a second each, so they show what the device reaches, not what it holds for hours: one that
is hot or capped by power shows less after a long run than before it. A data sheet's peak is not reached by any program;
these are, on the same day by the same library. Numbers are drawn at random, since products of zeros draw less power and
run faster, and buffers are several times larger than any cache.
"""

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)
PRODUCT_SIZE = {"cuda": 8192, "cpu": 1024}  # rows and columns of the matrices
TRAFFIC_BYTES = {"cuda": 2**30, "cpu": 2**27}  # of one buffer
BUDGET_MS = 200.0  # of a probe, buffers and warm-up left out
REPEATS = (5, 200)  # least and most calls within the budget


@dataclass(frozen=True)
class Limits:
    """Ceilings of one device; None where it can't do such products."""

    bf16_tflops: float | None
    fp8_tflops: float | None
    fp32_tflops: float | None
    copy_gbps: float
    read_gbps: float


def measure(device: torch.device) -> Limits:
    """All limits of a device, in about two seconds; takes 2 GiB of a GPU's memory for as long."""
    return Limits(
        matmul_tflops(device, torch.bfloat16),
        matmul_tflops(device, torch.float8_e4m3fn),
        matmul_tflops(device, torch.float32),
        copy_gbps(device),
        read_gbps(device),
    )


def matmul_tflops(device: torch.device, dtype: torch.dtype, size: int | None = None) -> float | None:
    """TFLOP/s of one large square matrix product in `dtype`, or None where the device has no such product.

    fp8 is torch._scaled_mm with one scale a tensor, its sums kept within the matrix unit (the fast ones), bf16 out.
    float32 is as torch is set to multiply it: by default without TF32.
    """
    if dtype in FP8 and not has_fp8(device):
        return None
    size = size or PRODUCT_SIZE[device.type]
    a = normal((size, size), dtype, device)
    # Both along the dimension that is summed, which fp8 asks for; E5M2 by E5M2 is a product that no unit has.
    b = normal((size, size), torch.float8_e4m3fn if dtype in FP8 else dtype, device, seed=1).mT
    if dtype in FP8:
        one = torch.ones((), device=device)

        def product() -> Tensor:
            return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
    else:
        out = torch.empty(size, size, dtype=dtype, device=device)

        def product() -> Tensor:
            return torch.mm(a, b, out=out)

    return 2 * size**3 / typical_ms(product, device) / 1e9


def copy_gbps(device: torch.device, size: int | None = None) -> float:
    """GB/s of a copy within the device's memory, bytes read and bytes written both counted; `size` in bytes."""
    source = normal(((size or TRAFFIC_BYTES[device.type]) // 4,), torch.float32, device)
    target = torch.empty_like(source)
    return 2 * source.nbytes / typical_ms(lambda: target.copy_(source), device) / 1e6


def read_gbps(device: torch.device, size: int | None = None) -> float:
    """GB/s of a sum over a buffer, which reads and writes next to nothing; `size` in bytes."""
    source = normal(((size or TRAFFIC_BYTES[device.type]) // 4,), torch.float32, device)
    return source.nbytes / typical_ms(lambda: source.sum(), device) / 1e6


def has_fp8(device: torch.device) -> bool:
    """Whether the device multiplies fp8 matrices in hardware: NVIDIA's, from Ada on."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 9)


def normal(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, deviation: float = 1.0, seed: int = 0
) -> Tensor:
    """Normal numbers from a generator of their own: a probe in the middle of a run changes no other draw."""
    generator = torch.Generator(device=device).manual_seed(seed)
    drawn = torch.float32 if dtype == torch.float32 else torch.bfloat16
    return torch.empty(shape, dtype=drawn, device=device).normal_(0, deviation, generator=generator).to(dtype)


def typical_ms(function: Callable[[], object], device: torch.device) -> float:
    """Median milliseconds of a call, of as many calls as the budget allows."""
    first = durations_ms(function, device, warmup=2, repeats=1)[0]
    least, most = REPEATS
    repeats = max(least, min(most, int(BUDGET_MS / max(first, 1e-3))))
    return statistics.median(durations_ms(function, device, warmup=1, repeats=repeats))


def durations_ms(function: Callable[[], object], device: torch.device, warmup: int, repeats: int) -> list[float]:
    """Milliseconds of each of `repeats` calls that follow `warmup` calls.

    On a GPU the calls are queued and only the last is waited for: what counts is the time on the GPU, and the time to
    launch a call where the GPU has to wait for it. On a CPU, wall-clock time.
    """
    for _ in range(warmup):
        function()
    if device.type != "cuda":
        marks = [time.perf_counter()]
        for _ in range(repeats):
            function()
            marks.append(time.perf_counter())
        return [1e3 * (stop - start) for start, stop in itertools.pairwise(marks)]
    with torch.cuda.device(device):
        events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        events[0].record()
        for event in events[1:]:
            function()
            event.record()
        torch.cuda.synchronize()
    return [start.elapsed_time(stop) for start, stop in itertools.pairwise(events)]
