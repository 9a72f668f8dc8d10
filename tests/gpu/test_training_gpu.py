"""A stage on the GPU: compiled in bf16 with windows it learns, does not recompile, and resumes in the same state."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

from config.paths import ROOT
from model.config import ModelConfig, shape
from tests.small_job import MemoryRows
from training.assemble import Assembled, assemble
from training.checkpoint import Checkpoints, Position
from training.config import TrainConfig
from training.distributed import Ranks

pytestmark = pytest.mark.gpu
CONTEXT, VOCAB = 256, 512
CONFIG = TrainConfig(tokens=10**6, batch_tokens=16 * CONTEXT, micro_batch=16, warmup_updates=2)


def build(folder: Path) -> tuple[Assembled, Checkpoints]:
    ranks = Ranks(0, 1, torch.device("cuda"))
    wanted = ModelConfig(width=256, layers=4, heads=2, window_pattern="SSSL", compile="on")
    parts = assemble(wanted, shape(wanted, VOCAB, CONTEXT), CONFIG, ranks, None)
    return parts, Checkpoints(folder, "print", 2, ranks)


def run(parts: Assembled, steps: range) -> list[float]:
    rows = MemoryRows(count=64, vocab=VOCAB, context=CONTEXT)
    losses = []
    for step in steps:
        ids = torch.from_numpy(rows.ids([(16 * step + i) % 64 for i in range(16)])).cuda()
        loss = parts.loss_sum(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        (loss / (16 * CONTEXT)).backward()
        parts.optimizer.step(1.0)
        parts.model.zero_grad(set_to_none=True)
        losses.append(loss.item() / (16 * CONTEXT))
    return losses


def test_learns_without_graph_breaks_and_resumes(tmp_path: Path) -> None:
    counters.clear()
    parts, checkpoints = build(tmp_path)
    assert parts.attention.name in ("varlen", "flex")
    first = run(parts, range(20))
    assert first[-1] < 0.5 * first[0]
    assert not counters["graph_break"], dict(counters["graph_break"])
    compiled = counters["stats"]["unique_graphs"]
    checkpoints.save(parts.model, parts.optimizer, Position(20))
    after = run(parts, range(20, 25))
    assert counters["stats"]["unique_graphs"] == compiled, "compiled again after the first steps"

    resumed, checkpoints = build(tmp_path)
    assert checkpoints.load_newest(resumed.model, resumed.optimizer).step == 20
    # State and rows are exact; atomic additions in some kernels leave the last digits open.
    assert run(resumed, range(20, 25)) == pytest.approx(after, rel=2e-2)


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
