"""The whole profile, composed of the sections that the packages own: what resolve checks before any work starts."""

import difflib

from config.errors import UserError
from config.paths import TRAINING_STAGES
from config.profile import Resolved, build
from config.run import RunConfig
from config.schema import section
from data.config import DataConfig, TokenizerConfig
from evals.config import TASK_NAMES, EvaluateConfig
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


def check(resolved: Resolved) -> Profile:
    """The typed profile; a mistake in a section, or in how two go together, is a UserError with file and line."""
    profile = build(Profile, resolved)
    for stage in TRAINING_STAGES:
        config: TrainConfig = getattr(profile, stage)
        try:
            config.rows(profile.data.context)
        except ValueError as error:
            raise UserError(f"{resolved.where((stage, 'batch_tokens'))}: `{stage}`: {error}") from None
        if not getattr(profile.data, stage):
            raise UserError(f"{resolved.where(('data', stage))}: `data.{stage}` names no source; give at least one")
    for name in profile.evaluate.tasks:
        if name not in TASK_NAMES:
            close = difflib.get_close_matches(name, TASK_NAMES, n=1)
            hint = f"did you mean `{close[0]}`?" if close else f"there are: {', '.join(TASK_NAMES)}"
            raise UserError(f"{resolved.where(('evaluate', 'tasks', name))}: no task `{name}`; {hint}")
    return profile
