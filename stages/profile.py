"""The whole profile, composed of the sections that the packages own: what resolve checks before any work starts."""

from config.paths import TRAINING_STAGES
from config.profile import Resolved, build
from config.run import RunConfig
from config.schema import section
from data.config import DataConfig, TokenizerConfig
from evals.config import EvaluateConfig
from model.config import ModelConfig
from training.config import TrainConfig


@section
class Profile:
    """Every section of a profile. Keys of `run` change no weights; all others do, or change what is measured."""

    data: DataConfig
    tokenizer: TokenizerConfig
    model: ModelConfig
    pretrain: TrainConfig
    midtrain: TrainConfig
    sft: TrainConfig
    evaluate: EvaluateConfig = EvaluateConfig()
    run: RunConfig = RunConfig()

    def __post_init__(self) -> None:
        for stage in TRAINING_STAGES:
            config: TrainConfig = getattr(self, stage)
            try:
                config.rows(self.data.context)
            except ValueError as error:
                raise ValueError(f"{stage}: {error}") from None
            if not getattr(self.data, stage):
                raise ValueError(f"data.{stage} names no source; give at least one")


def check(resolved: Resolved) -> Profile:
    """The typed profile; a mistake is a UserError with file and line."""
    return build(Profile, resolved)
