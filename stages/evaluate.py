"""Stage evaluate: what the finished model can do, on prompts that training never saw."""

import lzma
import time
from collections.abc import Iterator
from typing import Any

import torch

from config.errors import UserError, run_main
from config.files import write_json
from config.paths import TRAINING_STAGES, RunPaths
from config.profile import read_section
from data.builtin import builtin_seed
from data.calculator import CalculatorTool
from data.chat import parse_reply, render_prompt
from data.config import DataConfig
from data.conversation import Conversation, Part
from data.rows import Rows
from data.synthetic.corpus import poems
from data.tokenizer import Tokenizer
from evals.bits_per_byte import bits_per_byte, evenly
from evals.config import EvaluateConfig
from evals.generative import Respond, remembered, run
from evals.tasks.registry import tasks
from model import publish
from model.engine import Engine, Sampling
from stages.process import start

LAST_STAGE = TRAINING_STAGES[-1]


def main() -> None:
    paths = start("evaluate")
    config, data = read_section(paths, "evaluate", EvaluateConfig), read_section(paths, "data", DataConfig)
    tokenizer = Tokenizer.load(paths.tokenizer)
    known = tasks(lambda: training_poems(data))
    unknown = sorted(set(config.tasks) - set(known))
    if unknown:
        raise UserError(f"{paths.resolved}: evaluate.tasks names `{unknown[0]}`; there are: {', '.join(known)}")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    results: dict[str, Any] = {"tasks": {}, "bits_per_byte": {}}
    for stage in ("pretrain", LAST_STAGE):
        results["bits_per_byte"][stage] = measure_text(stage, config, paths, tokenizer, device)
    engine = Engine(
        publish.load(paths.model(LAST_STAGE), device),
        tokenizer.reply_ends,
        CalculatorTool(tokenizer),
    )
    respond = remembered(responder(engine, tokenizer, config.max_tokens))
    for name, floor in config.tasks.items():
        started = time.perf_counter()
        figures = run(known[name], respond, config.prompts, config.seed)
        results["tasks"][name] = {"share": figures["share"], "n": figures["n"], "floor": floor} | figures
        verdict = "" if figures["share"] >= floor else "  below its floor"
        print(
            f"{name:14} {figures['share']:7.1%} of {figures['n']:,} (floor {floor:.0%}) "
            f"in {time.perf_counter() - started:.1f} s{verdict}",
            flush=True,
        )
    write_json(paths.metrics("evaluate"), results)


def responder(engine: Engine, tokenizer: Tokenizer, max_tokens: int) -> Respond:
    """Answers conversations in batches."""

    def respond(conversations: list[Conversation], temperature: float, seed: int) -> list[tuple[Part, ...]]:
        prompts = [render_prompt(conversation, tokenizer) for conversation in conversations]
        sampling = Sampling(temperature=temperature, seed=seed, max_tokens=max_tokens)
        return [parse_reply(reply, tokenizer) for reply in engine.generate(prompts, sampling)]

    return respond


def training_poems(data: DataConfig) -> Iterator[str]:
    """Every poem of the built-in corpora that any stage of this profile was trained on."""
    yield from poems(
        (source.builtin, source.count, builtin_seed(source, mixture, data.seed))
        for mixture in TRAINING_STAGES
        for source in getattr(data, mixture)
        if source.builtin is not None
    )


def measure_text(
    stage: str, config: EvaluateConfig, paths: RunPaths, tokenizer: Tokenizer, device: str
) -> dict[str, Any]:
    """Bits per byte of a stage's model on its own validation split, beside what `xz -9e` makes of the same text."""
    rows = Rows(paths.manifest(stage), "validation")
    model = publish.load(paths.model(stage), device)
    figures = bits_per_byte(model, rows, tokenizer.byte_lengths, config.validation_rows)
    text = split_text(rows, config.validation_rows, tokenizer)
    packed = lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
    figures["xz_bits_per_byte"] = 8 * len(packed) / len(text) if text else None
    print(
        f"{stage}: {figures['bits_per_byte']:.3f} bits per byte over {figures['bytes']:,} bytes of held-out text"
        + (f"; xz -9e: {figures['xz_bits_per_byte']:.3f}" if text else ""),
        flush=True,
    )
    return figures


def split_text(rows: Rows, limit: int, tokenizer: Tokenizer) -> bytes:
    """The text of the rows that bits_per_byte takes, without marks and padding."""
    indices = evenly(len(rows), limit)
    ids = rows.ids(indices)
    return b"".join(tokenizer.token_bytes(token) for token in ids[rows.mask(indices) != 0].tolist())


if __name__ == "__main__":
    run_main(main)
