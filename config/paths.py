"""Where a run keeps its files: what DVC tracks in `runs/<profile>/`, work in progress in `.work/<profile>/`."""

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]  # the repository
TRAINING_STAGES = ("pretrain", "midtrain", "sft")


@dataclass(frozen=True)
class RunPaths:
    """Paths of one profile, relative to `root` (the repository)."""

    profile: str
    root: Path = Path()

    @property
    def run(self) -> Path:
        return self.root / "runs" / self.profile

    @property
    def work(self) -> Path:
        return self.root / ".work" / self.profile

    @property
    def resolved(self) -> Path:
        return self.run / "profile.yaml"

    @property
    def sources(self) -> Path:
        return self.run / "sources.json"

    @property
    def tokenizer(self) -> Path:
        return self.run / "tokenizer" / "tokenizer.json"

    @property
    def peek(self) -> Path:
        """What a look at the data found, for the report."""
        return self.run / "peek.json"

    def manifest(self, mixture: str) -> Path:
        """Shard manifest of one training stage's data."""
        return self.run / "shards" / f"{mixture}.json"

    def model(self, stage: str) -> Path:
        """Folder with a stage's published weights, config and tokenizer."""
        return self.run / stage

    def metrics(self, stage: str) -> Path:
        return self.run / "metrics" / f"{stage}.json"

    def events(self, stage: str) -> Path:
        return self.run / "events" / f"{stage}.jsonl"

    def plot(self, stage: str) -> Path:
        return self.run / "plots" / f"{stage}.csv"
