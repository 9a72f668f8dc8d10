"""Where fp8 pays: each shape of product timed in fp8 and bf16, on this device, for as many rows as a micro-batch has.

Small products lose in fp8 by the passes that round their operands. The outcome is a run's to keep: measured again it
might come out otherwise, and a resumed run has to compute as before.
"""

from collections.abc import Callable, Iterable
from statistics import median

import torch
from torch import Tensor

from model.kernels.quantize import E4M3, E5M2, quantize
from model.precision.bf16 import weight_gradient
from model.precision.fp8 import scaled_product

REPEATS = 7

Choices = dict[str, dict[str, float | str]]  # "1280x5120" (outputs × inputs) -> format, fp8_ms, bf16_ms


def key(outputs: int, inputs: int) -> str:
    """The name of a shape in the choices."""
    return f"{outputs}x{inputs}"


def where_fp8_pays(shapes: Iterable[tuple[int, int]], rows: int, device: torch.device) -> Choices:
    """For each (outputs, inputs) the faster format of forward and backward; some milliseconds a shape, on a GPU."""
    choices: Choices = {}
    for outputs, inputs in sorted(set(shapes)):
        fp8, bf16 = _fp8_ms(rows, outputs, inputs, device), _bf16_ms(rows, outputs, inputs, device)
        choices[key(outputs, inputs)] = {
            "format": "fp8" if fp8 < bf16 else "bf16",
            "fp8_ms": round(fp8, 3),
            "bf16_ms": round(bf16, 3),
        }
    return choices


def _random(rows: int, columns: int, device: torch.device) -> Tensor:
    return torch.randn(rows, columns, device=device, dtype=torch.bfloat16)


def _fp8_ms(rows: int, outputs: int, inputs: int, device: torch.device) -> float:
    """Three products, and both operands rounded in passes of their own: what a kernel before them saves is left out."""
    x, weight, gradient = (
        _random(rows, inputs, device),
        _random(outputs, inputs, device),
        _random(rows, outputs, device),
    )
    one = torch.ones((), device=device)
    w8, w8_columns = quantize(weight, one, E4M3)

    def work() -> None:
        x8, x8_columns = quantize(x, one, E4M3)
        scaled_product(x8, w8, one, one, torch.bfloat16, fast=True)
        dy8, dy8_columns = quantize(gradient, one, E5M2)
        scaled_product(dy8, w8_columns, one, one, torch.bfloat16, fast=False)
        scaled_product(dy8_columns, x8_columns, one, one, torch.float32, fast=False)

    return _milliseconds(work)


def _bf16_ms(rows: int, outputs: int, inputs: int, device: torch.device) -> float:
    x, weight, gradient = (
        _random(rows, inputs, device),
        _random(outputs, inputs, device),
        _random(rows, outputs, device),
    )

    def work() -> None:
        x @ weight.mT
        gradient @ weight
        weight_gradient(gradient, x)

    return _milliseconds(work)


def _milliseconds(work: Callable[[], None]) -> float:
    times = []
    for repeat in range(REPEATS + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        if repeat >= 2:  # the first two load kernels and raise the clock
            times.append(begin.elapsed_time(end))
    return median(times)
