"""How products are computed fastest: each shape timed on this device, for as many rows as a micro-batch has.

In which format: small products lose in fp8 by the passes that round their operands. And in how many parts bf16 sums a
weight's gradient. The outcome is a run's to keep: measured again it might come out otherwise, and a resumed run has to
compute as before.
"""

from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor

from model.kernels.quantize import E4M3, E5M2, quantize
from model.precision.bf16 import weight_gradient
from model.precision.fp8 import scaled_product

REPEATS = 7
PARTS = (1, 2, 4, 8)
GAIN = 0.98  # of the time in one part: what takes longer than that is not worth parts

# "1280x5120" (outputs × inputs) -> format, parts (of the weight's gradient in bf16), bf16_ms and, if timed, fp8_ms
Choices = dict[str, dict[str, float | str]]


def key(outputs: int, inputs: int) -> str:
    """The name of a shape in the choices."""
    return f"{outputs}x{inputs}"


def fastest(shapes: Iterable[tuple[int, int]], rows: int, device: torch.device, fp8: bool) -> Choices:
    """The fastest way of forward and backward for each (outputs, inputs), in bf16 or, if `fp8`, the faster of both;
    some milliseconds a shape, on a GPU."""
    choices: Choices = {}
    for outputs, inputs in sorted(set(shapes)):
        parts = fewest_milliseconds(_parts_ms(rows, outputs, inputs, device))
        bf16_ms = _bf16_ms(rows, outputs, inputs, parts, device)
        choice = {"format": "bf16", "parts": parts, "bf16_ms": round(bf16_ms, 3)}
        if fp8:
            fp8_ms = _fp8_ms(rows, outputs, inputs, device)
            choice |= {"format": "fp8" if fp8_ms < bf16_ms else "bf16", "fp8_ms": round(fp8_ms, 3)}
        choices[key(outputs, inputs)] = choice
    return choices


def fewest_milliseconds(times: dict[int, float]) -> int:
    """The number of parts that takes least, by its milliseconds; 1 where that is all but as fast."""
    parts = min(times, key=times.__getitem__)
    return parts if times[parts] < GAIN * times[1] else 1


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


def _parts_ms(rows: int, outputs: int, inputs: int, device: torch.device) -> dict[int, float]:
    """Of the weight's gradient in bf16, by the number of parts."""
    x, gradient = _random(rows, inputs, device), _random(rows, outputs, device)
    return {parts: _milliseconds(partial(weight_gradient, gradient, x, parts)) for parts in PARTS if rows % parts == 0}


def _bf16_ms(rows: int, outputs: int, inputs: int, parts: int, device: torch.device) -> float:
    x, weight, gradient = (
        _random(rows, inputs, device),
        _random(outputs, inputs, device),
        _random(rows, outputs, device),
    )

    def work() -> None:
        x @ weight.mT
        gradient @ weight
        weight_gradient(gradient, x, parts)

    return _milliseconds(work)


def _milliseconds(work: Callable[[], object]) -> float:
    """The GPU's time alone, of a recorded graph. In training the launches run ahead of the GPU; timed call by call on a
    slow host they would count for more than small products, and so decide."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):  # kernels are loaded and workspaces taken before the recording, as it asks
        work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(REPEATS + 1)]
    for _ in range(2):
        graph.replay()
    for mark in marks:
        mark.record()
        graph.replay()
    torch.cuda.synchronize()
    return median(start.elapsed_time(stop) for start, stop in pairwise(marks))
