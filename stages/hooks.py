"""What is looked at while a stage trains: its validation loss, and its answers to a few fixed prompts.

Nothing here changes weights, so no stage's dvc.yaml entry depends on it.
"""

from dataclasses import dataclass

from config.run import RunConfig
from data.calculator import CalculatorTool
from data.chat import parse_reply, render_prompt
from data.conversation import user
from data.rows import Rows
from data.tokenizer import Tokenizer
from evals.bits_per_byte import bits_per_byte
from model.engine import Engine, Sampling
from model.gpt import GPT
from training.loop import Hook
from training.telemetry import Telemetry

VALIDATION_ROWS = 128  # enough for a curve; the evaluate stage takes more
REPLY_TOKENS = 48


@dataclass(frozen=True)
class Watch:
    """What the hooks look at, and where they write what they see."""

    stage: str
    model: GPT
    tokenizer: Tokenizer
    telemetry: Telemetry
    updates: int


def hooks(watch: Watch, run: RunConfig, validation_rows: Rows) -> list[Hook]:
    """The hooks of a stage, at the updates that the profile's `run` asks for."""
    validation = Hook(spread(run.validation_count, watch.updates), lambda step: _validate(watch, validation_rows, step))
    prompts = run.sample_texts if watch.stage == "pretrain" else run.sample_prompts
    if not prompts:
        return [validation]
    answers = Hook(spread(run.sample_count, watch.updates, power=2), lambda step: _answer(watch, prompts, step))
    return [validation, answers]


def spread(count: int, updates: int, power: int = 1) -> frozenset[int]:
    """`count` updates up to the last: evenly, or with a higher power denser at the beginning, where most changes."""
    return frozenset(max(1, round(updates * (at / count) ** power)) for at in range(1, count + 1))


def _validate(watch: Watch, rows: Rows, step: int) -> None:
    figures = bits_per_byte(watch.model, rows, watch.tokenizer.byte_lengths, VALIDATION_ROWS)
    watch.telemetry.event("validation", step=step, bits_per_byte=figures["bits_per_byte"], loss=figures["loss"])


def _answer(watch: Watch, prompts: tuple[str, ...], step: int) -> None:
    """Greedy replies; in pretraining, which has seen no chats, the model goes on with plain text instead."""
    tokenizer = watch.tokenizer
    engine = Engine(watch.model, frozenset({tokenizer.assistant_end, tokenizer.bos}), CalculatorTool(tokenizer))
    plain = watch.stage == "pretrain"
    ids = [
        [tokenizer.bos, *tokenizer.encode(prompt)] if plain else render_prompt((user(prompt),), tokenizer)
        for prompt in prompts
    ]
    sampling = Sampling(temperature=0, max_tokens=min(REPLY_TOKENS, watch.model.config.context // 2))
    for prompt, reply in zip(prompts, engine.generate(ids, sampling), strict=True):
        parts = [{"type": part.kind, "text": part.text} for part in parse_reply(reply, tokenizer)]
        watch.telemetry.event("sample", step=step, prompt=prompt, reply=parts)
