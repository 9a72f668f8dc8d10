"""A stage on the GPU, under each recipe: one graph, not compiled again, learning, and resumed in the same state."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from config.paths import ROOT
from model.config import ModelConfig, shape
from model.linear import refresh
from model.precision.measure import Choices
from model.precision.recipes import refuses
from tests.small_job import MemoryRows
from training.assemble import Assembled, assemble
from training.checkpoint import Checkpoints, Position
from training.config import TrainConfig
from training.distributed import Ranks

pytestmark = pytest.mark.gpu
CONTEXT, VOCAB, ROWS = 256, 512, 16
CONFIG = TrainConfig(tokens=10**6, batch_tokens=ROWS * CONTEXT, micro_batch=ROWS, warmup_updates=2)
RECIPES = ("bf16", "fp8", "nvfp4-emulated", "te-fp8", "te-fp8-delayed")


@pytest.fixture(autouse=True)
def nothing_compiled_before() -> None:
    torch._dynamo.reset()
    counters.clear()


def build(
    folder: Path, precision: str, recompute: str = "K", choices: Choices | None = None
) -> tuple[Assembled, Checkpoints]:
    if problem := refuses(precision, torch.device("cuda")):
        pytest.skip(f"{precision} {problem}")
    ranks = Ranks(0, 1, torch.device("cuda"))
    wanted = ModelConfig(
        width=256,
        layers=4,
        heads=2,
        window_pattern="SSSL",
        compile="on",
        precision=precision,
        recompute_pattern=recompute,
    )
    parts = assemble(wanted, shape(wanted, VOCAB, CONTEXT), CONFIG, ranks, None, choices)
    return parts, Checkpoints(folder, "print", 2, ranks)


def run(parts: Assembled, steps: range) -> list[float]:
    rows = MemoryRows(count=64, vocab=VOCAB, context=CONTEXT)
    losses = []
    for step in steps:
        ids = torch.from_numpy(rows.ids([(ROWS * step + i) % 64 for i in range(ROWS)])).cuda()
        loss = parts.loss_sum(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        loss.backward()
        parts.optimizer.step(1.0, 1 / (ROWS * CONTEXT))
        refresh(parts.model)
        parts.model.zero_grad(set_to_none=True)
        losses.append(loss.item() / (ROWS * CONTEXT))
    return losses


@pytest.mark.parametrize("precision", RECIPES)
def test_learns_in_one_graph_and_resumes_exactly(tmp_path: Path, monkeypatch, precision: str) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what torch asks for, to compute the same bits each time
    torch.use_deterministic_algorithms(True)
    try:
        parts, checkpoints = build(tmp_path, precision)
        first = run(parts, range(20))
        assert first[-1] < 0.5 * first[0]
        if parts.recipe.one_graph:
            assert not counters["graph_break"], dict(counters["graph_break"])
        compiled = counters["stats"]["unique_graphs"]
        checkpoints.save(parts.model, parts.optimizer, Position(20))
        after = run(parts, range(20, 25))
        assert counters["stats"]["unique_graphs"] == compiled, "compiled again after the first steps"

        resumed, checkpoints = build(tmp_path, precision, choices=parts.choices)
        assert checkpoints.load_newest(resumed.model, resumed.optimizer).step == 20
        assert run(resumed, range(20, 25)) == after
        for ours, theirs in zip(resumed.model.parameters(), parts.model.parameters(), strict=True):
            assert torch.equal(ours, theirs)
    finally:
        torch.use_deterministic_algorithms(False)


def test_recomputed_layers_take_less_memory_and_learn_the_same(tmp_path: Path) -> None:
    losses, peaks = [], []
    for pattern in ("K", "R"):
        torch._dynamo.reset()
        parts, _ = build(tmp_path, "bf16", pattern)
        run(parts, range(2))
        torch.cuda.reset_peak_memory_stats()
        losses.append(run(parts, range(2, 6)))
        peaks.append(torch.cuda.max_memory_allocated())
        del parts
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)
    assert peaks[1] < peaks[0]


def test_keeps_no_more_for_the_backward_pass_than_products_and_attention_need(tmp_path: Path) -> None:
    """In tensors of the stream's size a layer: the stream twice, the norms' results, q, k, v, what attention puts out
    and, four times as wide, the MLP's middle. Blended streams and value rows are made again."""
    parts, _ = build(tmp_path, "bf16")
    run(parts, range(2))
    rows = MemoryRows(count=64, vocab=VOCAB, context=CONTEXT)
    ids = torch.from_numpy(rows.ids(list(range(ROWS)))).cuda()
    ids, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    kept: dict[int, int] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        parts.loss_sum(ids, targets)
    known = [*parts.model.parameters(), *parts.model.buffers(), ids, targets]
    for tensor in known:
        kept.pop(tensor.untyped_storage().data_ptr(), None)
    stream = ROWS * CONTEXT * parts.model.config.width * torch.bfloat16.itemsize
    head = parts.model.head.weight.nbytes + stream  # the loss's gradients, ready when it returns
    a_layer = (sum(kept.values()) - head - stream) / stream / parts.model.config.layers
    assert 10 < a_layer < 13, a_layer


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason=f"needs 2 GPUs, found {torch.cuda.device_count()}")
def test_two_ranks_over_nccl_agree_with_one(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    for world in (1, 2):
        (tmp_path / str(world)).mkdir()
        subprocess.run(
            [*command, f"--nproc_per_node={world}", "tests/gpu/nccl_worker.py", str(tmp_path / str(world))],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"},
            check=True,
            timeout=240,
        )
    one = torch.load(tmp_path / "1" / "rank-0.pt")
    two = [torch.load(tmp_path / "2" / f"rank-{rank}.pt") for rank in range(2)]
    # Exact agreement is a CPU test. Here the order of atomic additions differs from run to run, and training magnifies
    # it: over 50 updates two ranks and one were seen to drift 1 % apart, the first 13 updates within 1e-4.
    assert two[0]["losses"][:10] == pytest.approx(one["losses"][:10], rel=1e-4)
    assert two[0]["losses"] == pytest.approx(one["losses"], rel=3e-2)
    for name, tensor in two[0]["weights"].items():
        assert torch.equal(tensor, two[1]["weights"][name]), name
