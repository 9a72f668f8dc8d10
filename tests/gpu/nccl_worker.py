"""One rank of the NCCL test: trains a small GPT in float32 and writes its losses and weights to FOLDER/rank-<r>.pt."""

import sys
from pathlib import Path

import torch
import torch.distributed as dist

from model.config import ModelConfig, shape
from tests.small_job import MemoryRows
from training.assemble import assemble
from training.config import TrainConfig
from training.distributed import join, leave

CONTEXT, VOCAB, ROWS, UPDATES = 128, 301, 16, 50


def main(folder: Path) -> None:
    ranks = join()
    config = TrainConfig(tokens=10**6, batch_tokens=ROWS * CONTEXT, micro_batch=ROWS)
    wanted = ModelConfig(width=64, layers=2, heads=2, window_pattern="L", precision="fp32", compile="off")
    parts = assemble(wanted, shape(wanted, VOCAB, CONTEXT), config, ranks, None)
    rows = MemoryRows(count=64, vocab=VOCAB, context=CONTEXT)
    losses = []
    for step in range(UPDATES):
        mine = range(ranks.rank, ROWS, ranks.world)
        ids = torch.from_numpy(rows.ids([(ROWS * step + row) % 64 for row in mine])).to(ranks.device)
        loss = parts.loss_sum(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        loss.backward()
        total = loss.detach() / (ROWS * CONTEXT)
        ranks.sum_([parameter.grad for parameter in parts.model.parameters()])
        ranks.sum_([total])
        parts.optimizer.step(1.0, 1 / (ROWS * CONTEXT))
        parts.model.zero_grad(set_to_none=True)
        losses.append(total.item())
    if ranks.world > 1:
        assert dist.get_backend() == "nccl"
    weights = {name: tensor.cpu() for name, tensor in parts.model.state_dict().items()}
    torch.save({"losses": losses, "weights": weights}, folder / f"rank-{ranks.rank}.pt")
    leave(ranks)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
