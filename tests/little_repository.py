"""A repository in little: the code linked in, one small profile, its tokenizer and shards made."""

import sys
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from config.paths import ROOT, TRAINING_STAGES
from stages import resolve, shard, tokenize
from tests.imports import PACKAGES

PROFILE = """\
data:
  context: 32
  shard_folder: {root}/.work/shards
  validation_share: 0.1
  pretrain: [{{builtin: smoke_documents, count: 200}}]
  midtrain: [{{builtin: smoke_chats, count: 100}}]
  sft: [{{builtin: smoke_chats, count: 100}}]
tokenizer: {{vocab_size: 300}}
model: {{width: 32, layers: 2, heads: 2, precision: fp32, compile: "off"}}
pretrain: {{tokens: 1024, batch_tokens: 128, micro_batch: 2, warmup_updates: 1}}
midtrain: {{tokens: 512, batch_tokens: 128, micro_batch: 2, warmup_updates: 1}}
sft: {{tokens: 512, batch_tokens: 128, micro_batch: 2, warmup_updates: 1, learning_rate: 0.01}}
run:
  threads: 1
  log_updates: 2
  checkpoint_updates: 3
  sample_count: 2
  sample_texts: ["The capital of"]
  sample_prompts: ["What is 3 + 4?"]
"""


@contextmanager
def current(root: Path) -> Iterator[None]:
    """Make `root` the current folder and `little` the profile that stages are asked for."""
    with chdir(root), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["", "little"])
        yield


def make(root: Path) -> Path:
    """Fill `root` as after `dvc repro shard` of the profile `little`; returns it."""
    for name in (*PACKAGES, "dvc.yaml"):
        (root / name).symlink_to(ROOT / name)
    (root / "profiles").mkdir()
    (root / "profiles" / "little.yaml").write_text(PROFILE.format(root=root))
    (root / "params.yaml").write_text("profile: little\n")
    with current(root):
        for stage in (resolve, tokenize, shard):
            stage.main()
    return root


def write_profile(root: Path, **data: Any) -> None:
    """A profile `little` with these keys of its section `data`, its shards and downloads below `root`."""
    values = yaml.safe_load(PROFILE.format(root=root))
    values["data"] |= {"cache_folder": str(root / "cache"), "shard_folder": str(root / "shards"), **data}
    if "context" in data:
        for stage in TRAINING_STAGES:
            values[stage] |= {"tokens": 8 * data["context"], "batch_tokens": 4 * data["context"]}
    (root / "profiles").mkdir(exist_ok=True)
    (root / "profiles" / "little.yaml").write_text(yaml.safe_dump(values))
    (root / "params.yaml").write_text("profile: little\n")


def run_stages(root: Path, *stages: ModuleType) -> None:
    """Run stages of `little`, in this process."""
    with current(root):
        for stage in stages:
            stage.main()
