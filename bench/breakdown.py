"""Where the milliseconds of a training step go: one update under the profiler, its GPU kernels sorted into classes.

    python -m bench.breakdown --output results/d20-bf16 --depth 20 --precision bf16 --micro-batch 32 --accum 1

All options but `--output` are those of bench.step. Writes breakdown.json, kernels.txt (the kernels that take longest)
and, where matplotlib is installed, breakdown.png: the update as one bar, and beside it the floor, which is what the
same work takes at the limits measured in the same run. `--draw FOLDER` draws from the JSON alone.

Kernels are told by their names. The optimizer's products have the same names as the model's, so what belongs to an
update's end is told by when it was launched.
"""

import argparse
import json
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench import step as bench_step
from bench.floor import floor_parts
from bench.step import Step
from bench.timing import ceilings, collector_off, header, wall_ms
from config.errors import UserError, run_main
from config.files import read_json, write_atomic, write_json

PHASES = ("forward_backward", "optimizer")
IDLE, OTHER = "idle gaps", "copy and other"
# In the order they are tried. Attention comes first, as its kernels carry the names of what it is built from (cutlass,
# triton templates); the loss and the embedding before pointwise work, which the compiler names after all it has fused.
CLASSES: tuple[tuple[str, str], ...] = (
    (
        "attention backward",
        r"flash_?bwd|FlashAttn\w*Bwd|FlashAttentionBackward|sdpa\w*bprop|fmha_cutlassB|flex_attention_backward"
        r"|flash::\w*bwd",
    ),
    (
        "attention forward",
        r"flash_?fwd|FlashAttn\w*Fwd|FlashAttentionForward|sdpa\w*fprop|fmha_cutlassF|flex_attention|flash::\w*fwd",
    ),
    (
        "quantise, transpose",
        r"^_(quantize|transpose|cast)\w*$|transformer_engine::.*(cast|quantize|transpose|amax)"
        r"|(^|[_:])(cast_transpose|transpose_optimized|compute_scale_from_amax|amax_kernel|quantize_)",
    ),
    ("loss", r"cross_entropy|head_loss|log_?softmax|softmax_online|SoftMax|nll_loss|logsumexp"),
    (
        "embedding",
        r"embedding|indexing_backward|index_put|indexSelect|vectorized_gather|compute_grad_weight|sum_and_scatter"
        r"|RadixSort|krn_partial|index_elementwise",
    ),
    ("matrix multiply", r"nvjet|gemm|Gemm|gemv|cublas|splitKreduce|triton_tem_fused\w*mm"),
    (OTHER, r"^Mem(cpy|set)|direct_copy|CatArrayBatchedCopy|nccl"),
    (
        "norm, pointwise",
        r"^triton_(poi|red|per|mix|for)_fused|^_(forward|backward|relu2\w*)$|elementwise|reduce_kernel|multi_tensor_apply"
        r"|layer_norm|rms_?norm",
    ),
)
# Of the bars, in this order from the left.
COLOURS = {
    "matrix multiply": "#1f5fbf",
    "attention forward": "#0b8065",
    "attention backward": "#46b08c",
    "quantise, transpose": "#c4561b",
    "norm, pointwise": "#e0a030",
    "loss": "#8250a8",
    "embedding": "#b98fd0",
    "optimizer": "#6b7785",
    OTHER: "#b6bec8",
    IDLE: "#e6e9ed",
}


@dataclass(frozen=True)
class Kernel:
    """One run of a kernel on the GPU; times in microseconds."""

    name: str
    start: float
    duration: float
    phase: str  # of PHASES, or empty

    @property
    def kind(self) -> str:
        return "optimizer" if self.phase == "optimizer" else classify(self.name)


def classify(name: str) -> str:
    """The class of a kernel by its name; what no pattern knows is "copy and other"."""
    return next((kind for kind, pattern in CLASSES if re.search(pattern, name)), OTHER)


def record(step: Step) -> list[dict[str, Any]]:
    """The trace events (Chrome's format) of one update, after one that only sets the profiler going."""
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    activities = [ProfilerActivity.CPU]
    if step.rows.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=1, active=1, repeat=1),
            on_trace_ready=lambda found: found.export_chrome_trace(str(path)),
        ) as profiler:
            for _ in range(2):
                bench_step.synchronize(step.rows.device)
                with record_function(PHASES[0]):
                    step.gradients()
                with record_function(PHASES[1]):
                    step.update()
                bench_step.synchronize(step.rows.device)
                profiler.step()
        return json.loads(path.read_text(encoding="utf-8"))["traceEvents"]


def kernels_of(events: list[dict[str, Any]]) -> list[Kernel]:
    """What ran on the GPU, in order of time. A kernel belongs to the phase in which it was launched: by then the GPU
    may still be at work for the phase before."""
    phases = [(event["name"], *span(event)) for event in events if is_phase(event)]
    launched = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver") and "correlation" in event.get("args", {})
    }
    kernels = []
    for event in events:
        if event.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset"):
            at = launched.get(event["args"].get("correlation"), event["ts"])
            phase = next((name for name, start, stop in phases if start <= at <= stop), "")
            kernels.append(Kernel(event["name"], event["ts"], event["dur"], phase))
    return sorted(kernels, key=lambda kernel: kernel.start)


def is_phase(event: dict[str, Any]) -> bool:
    return event.get("cat") == "user_annotation" and event.get("name") in PHASES


def span(event: dict[str, Any]) -> tuple[float, float]:
    return event["ts"], event["ts"] + event["dur"]


def busy_us(kernels: Iterable[Kernel]) -> float:
    """Microseconds in which at least one kernel ran; the kernels are in order of time."""
    busy, until = 0.0, float("-inf")
    for kernel in kernels:
        stop = kernel.start + kernel.duration
        busy += max(0.0, stop - max(until, kernel.start))
        until = max(until, stop)
    return busy


def milliseconds(kernels: list[Kernel]) -> dict[str, float]:
    """Milliseconds by class from the first kernel's start to the last one's end, idle gaps included."""
    if not kernels:
        raise UserError("the profiler saw no GPU kernel; expected those of a training step: is CUPTI allowed here?")
    spent: dict[str, float] = dict.fromkeys(COLOURS, 0.0)
    for kernel in kernels:
        spent[kernel.kind] += kernel.duration / 1e3
    last = max(kernel.start + kernel.duration for kernel in kernels)
    spent[IDLE] = (last - kernels[0].start - busy_us(kernels)) / 1e3
    return spent


def optimizer_milliseconds(kernels: list[Kernel]) -> dict[str, float]:
    """The optimizer's kernels by the class of their names."""
    spent: dict[str, float] = defaultdict(float)
    for kernel in kernels:
        if kernel.phase == "optimizer":
            spent[classify(kernel.name)] += kernel.duration / 1e3
    return dict(spent)


def top(kernels: list[Kernel], count: int = 40) -> str:
    """The kernels that take longest in all, as text: milliseconds, share of all kernels, runs, class, phase, name."""
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for kernel in kernels:
        found[kernel.name, kernel.kind, kernel.phase].append(kernel.duration / 1e3)
    total = sum(map(sum, found.values()))
    lines = [f"{'ms':>9} {'share':>7} {'runs':>6}  {'class':<20} {'phase':<17} name"]
    for (name, kind, phase), spent in sorted(found.items(), key=lambda item: -sum(item[1]))[:count]:
        share = f"{sum(spent) / total:7.1%}"
        lines.append(f"{sum(spent):9.3f} {share} {len(spent):6d}  {kind:<20} {phase or '–':<17} {name[:160]}")
    return "\n".join(lines) + "\n"


def draw(result: dict[str, Any], path: Path) -> None:
    """The update and its floor as two stacked bars."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    axis = figure.add_subplot()
    bars = {"measured": result["ms_by_class"], "floor": result["floor_ms"]}
    longest = max(sum(parts.values()) for parts in bars.values())
    for row, parts in enumerate(bars.values()):
        left = 0.0
        for kind, colour in COLOURS.items():
            width = parts.get(kind, 0.0)
            axis.barh(row, width, left=left, color=colour, edgecolor="white", lw=0.6, label=kind if row == 0 else None)
            if width > 0.03 * longest:
                dark = kind in ("norm, pointwise", "embedding", OTHER, IDLE)
                axis.text(
                    left + width / 2,
                    row,
                    f"{width:.0f}",
                    ha="center",
                    va="center",
                    size=8,
                    color="#1f2328" if dark else "w",
                )
            left += width
        axis.text(left + 0.005 * longest, row, f"{left:.0f} ms", va="center", size=9, color="#1f2328")
    axis.set_yticks(range(len(bars)), list(bars))
    axis.invert_yaxis()
    axis.set_xlim(0, longest * 1.08)
    axis.set_xlabel("milliseconds an update", size=9, color="#57606a")
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(labelsize=9, length=0)
    figure.legend(loc="outside lower center", ncols=5, fontsize=8, frameon=False)
    axis.set_title(title(result), size=10, loc="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=160)


def title(result: dict[str, Any]) -> str:
    return (
        f"depth {result['depth']}, {result['precision']}, {result['attention']}, windows {result['window']}, "
        f"{result['micro_batch']} × {result['accum']} rows of {result['seq']} · "
        f"{result['device']}, {result['date'][:10]}"
    )


def measure(args: argparse.Namespace) -> tuple[dict[str, Any], list[Kernel]]:
    """The result and the kernels of the step that the arguments (bench.step's) name. UserError without a GPU."""
    if not torch.cuda.is_available():
        raise UserError("bench.breakdown profiles GPU kernels and found no GPU; run it on a machine that has one")
    step = bench_step.build(args)
    device = step.rows.device
    wall = wall_ms(step.run, device, warmup=max(2, args.warmup), repeats=3)
    with collector_off():
        kernels = kernels_of(record(step))
    limits = ceilings(device)
    spent = milliseconds(kernels)
    overlap = sum(kernel.duration for kernel in kernels) / 1e3 - busy_us(kernels) / 1e3
    keys = ("depth", "window", "micro_batch", "accum", "seq", "recompute")
    result = header("breakdown", device) | limits | {key: getattr(args, key) for key in keys}
    return result | {
        "precision": step.parts.recipe.name,
        "attention": step.parts.attention.name,
        "ms": wall,
        "ms_profiled": sum(spent.values()) - overlap,
        "overlap_ms": overlap,
        "ms_by_class": spent,
        "optimizer_ms_by_class": optimizer_milliseconds(kernels),
        "floor_ms": floor_parts(step, limits),
    }, kernels


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("breakdown"), help="folder of the results")
    parser.add_argument("--draw", type=Path, help="folder with a breakdown.json: draw it, and measure nothing")
    own, others = parser.parse_known_args(argv)
    if own.draw:
        draw(read_json(own.draw / "breakdown.json", "a result of bench.breakdown"), own.draw / "breakdown.png")
        return
    args = bench_step.arguments(others)
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")  # as bench.step does
    result, kernels = measure(args)
    write_json(own.output / "breakdown.json", result)
    text = top(kernels)
    write_atomic(own.output / "kernels.txt", text)
    try:
        draw(result, own.output / "breakdown.png")
    except ModuleNotFoundError:
        print(f"no matplotlib here; draw elsewhere: python -m bench.breakdown --draw {own.output}", file=sys.stderr)
    print(json.dumps(result) if args.json else text, end="\n" if args.json else "")


if __name__ == "__main__":
    run_main(main)
