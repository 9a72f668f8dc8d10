"""What the benchmarks share: how a call is timed, the limits beside it, a result's header and how it is printed."""

import gc
import json
import statistics
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

import torch

from config.files import finite
from config.paths import ROOT
from hardware import limits
from hardware.limits import durations_ms


def first_device() -> torch.device:
    """The first GPU, or the CPU where there is none."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@contextmanager
def collector_off() -> Iterator[None]:
    """Python's garbage collector off, as in training: a collection in the middle of a call is no part of it."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def median_ms(function: Callable[[], object], device: torch.device, warmup: int = 3, repeats: int = 10) -> float:
    """Median milliseconds of a call: CUDA events around queued calls on a GPU, wall-clock time on a CPU."""
    with collector_off():
        return statistics.median(durations_ms(function, device, warmup, repeats))


def wall_ms(function: Callable[[], object], device: torch.device, warmup: int, repeats: int) -> float:
    """Median wall-clock milliseconds of a call that is waited for: what a user waits, launches and gaps included."""

    def waited() -> None:
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    with collector_off():
        return statistics.median(durations_ms(waited, torch.device("cpu"), warmup, repeats))


def peak_gib(function: Callable[[], object], device: torch.device) -> float | None:
    """GiB that a call takes beyond what lies in the GPU's memory before it; None on a CPU."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    function()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**30


def ceilings(device: torch.device) -> dict[str, float | None]:
    """The limits, measured now, under the names that results carry them by."""
    found = limits.measure(device)
    return {
        "ceiling_bf16_tflops": found.bf16_tflops,
        "ceiling_fp8_tflops": found.fp8_tflops,
        "ceiling_fp32_tflops": found.fp32_tflops,
        "copy_gbps": found.copy_gbps,
        "read_gbps": found.read_gbps,
    }


def ceiling_of(recipe: str, found: dict[str, float | None]) -> float | None:
    """TFLOP/s of the matrix products in which a recipe (`bf16`, `te-fp8-delayed`, …) does its work."""
    return found.get(f"ceiling_{number_format(recipe)}_tflops")


def number_format(recipe: str) -> str:
    """fp8, fp32, nvfp4 or bf16: what a recipe multiplies in, where it can. Emulated formats multiply in bf16."""
    if recipe.endswith("-emulated"):
        return "bf16"
    return next((name for name in ("nvfp4", "fp8", "fp32") if name in recipe), "bf16")


def header(bench: str, device: torch.device) -> dict[str, Any]:
    """What a figure has to be read with: when, on what device, with which versions of what."""
    return {
        "bench": bench,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "triton": _version("triton"),
        "cuda": torch.version.cuda,
        "driver": _driver() if device.type == "cuda" else None,
        "commit": _commit(),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _driver() -> str | None:
    """NVIDIA's driver; None where NVML is missing or answers with an error, as it does in some containers."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except Exception:
        return None


def _commit() -> str | None:
    """The commit of the repository, `-dirty` after it when files differ; None outside a repository."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


def report(result: dict[str, Any], as_json: bool) -> None:
    """Print a result: one JSON line, or values and tables to read."""
    result = finite(_rounded(result))
    if as_json:
        print(json.dumps(result))
        return
    tables = {key: value for key, value in result.items() if isinstance(value, list)}
    for key, value in result.items():
        if key not in tables:
            print(f"{key:>24}  {'–' if value is None else value}")
    for key, rows in tables.items():
        print(f"\n{key}\n{table(rows)}")


def table(rows: list[dict[str, Any]]) -> str:
    """Rows of equal keys as aligned columns."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    lines = [keys, *[["–" if row.get(key) is None else str(row[key]) for key in keys] for row in rows]]
    widths = [max(len(line[column]) for line in lines) for column in range(len(keys))]
    return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)


def _rounded(value: Any) -> Any:
    """Floats to four significant digits: the rest is noise."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value
