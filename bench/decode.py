"""How fast tokens are generated, against reading at the memory's full speed all that a token needs.

    python -m bench.decode --depth 20 --batch 1 --tokens 256 --prompt 128 --json
    python -m bench.decode --profile tiny --json

One result a batch (on a GPU 1, 8 and 64 unless named): tok_s of all rows together; ms_token from one token of a row to
its next; bytes_token, what has to be read for that, once for all rows: the matrices with the head, embedding rows, keys
and values; gb_s, that rate; and its share of limit_gb_s, what the device reads at best, measured in the same run.
Random weights, greedy, through the engine; the quickest of several runs, prefill and compilation subtracted.
"""

import argparse
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench.timing import collector_off, first_device, header, report
from config.errors import UserError, run_main
from config.profile import resolve
from hardware.limits import copy_gbps, read_gbps
from model.config import GPTConfig, ModelConfig, matmul_parameters, shape
from model.engine import Engine, Sampling
from model.gpt import GPT
from stages.profile import check

DTYPES = {"bf16": torch.bfloat16, "fp8": torch.bfloat16, "fp32": torch.float32}  # fp8: of the weights only


@dataclass(frozen=True)
class Run:
    """What is generated: `tokens` new ones after `prompt`, in `batch` rows."""

    batch: int
    prompt: int
    tokens: int
    temperature: float


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=20)
    parser.add_argument("--profile", help="the model of this profile instead, such as tiny")
    parser.add_argument("--width", type=int, help="with --layers and --heads: a model of this size instead")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--heads", type=int)
    parser.add_argument("--window", default="SSSL")
    parser.add_argument("--vocab", type=int, default=32_768)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--batch", type=int, action="append", help="rows; may be given several times")
    parser.add_argument("--prompt", type=int, help="tokens; default: 128, or a quarter of a shorter context")
    parser.add_argument("--tokens", type=int, help="new ones a row; default: 256, or what the context leaves")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--precision", choices=[*DTYPES], help="default: bf16 on a GPU, fp32 on a CPU")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def config_of(args: argparse.Namespace) -> GPTConfig:
    """The model that the arguments name; UserError when they go together badly."""
    if args.profile is not None:
        profile = check(resolve(args.profile, Path()))
        return shape(profile.model, profile.tokenizer.vocab_size, profile.data.context)
    sizes = {"width": args.width, "layers": args.layers, "heads": args.heads}
    if all(size is None for size in sizes.values()):
        sizes = {"depth": args.depth}
    try:
        return shape(ModelConfig(**sizes, window_pattern=args.window), args.vocab, args.context)
    except ValueError as error:
        raise UserError(str(error)) from None


def random_model(config: GPTConfig, dtype: torch.dtype, device: torch.device) -> GPT:
    """A model whose every matrix is random: a fresh one's blocks do nothing."""
    with torch.device(device):
        model = GPT(config)
    generator = torch.Generator(device=device).manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.normal_(0, parameter.shape[1] ** -0.5, generator=generator)
            else:
                parameter.fill_(0.7)
    return model.to(dtype).eval()


def bytes_read(config: GPTConfig, run: Run, itemsize: int, matrix_itemsize: int) -> float:
    """Bytes that one step over all rows has to read, on average over the run."""
    matrices = matmul_parameters(config) * matrix_itemsize
    kv_width = config.kv_heads * config.head_dim
    rows = run.batch * (config.width + len(config.value_layers) * kv_width) * itemsize
    steps = range(run.prompt, run.prompt + run.tokens - 1)  # positions of the tokens fed
    older = sum(min(at, window - 1) for at in steps for window in config.windows) / len(steps)
    return matrices + rows + run.batch * older * 2 * kv_width * itemsize


def seconds(engine: Engine, run: Run, tokens: int) -> float:
    """Of generating so many tokens in each row, the reading of the prompts included."""
    generator = torch.Generator().manual_seed(1)
    vocab = engine.model.config.vocab_size
    prompts = torch.randint(0, vocab, (run.batch, run.prompt), generator=generator).tolist()
    started = time.perf_counter()
    engine.generate(prompts, Sampling(temperature=run.temperature, seed=0, max_tokens=tokens))
    return time.perf_counter() - started


def measure(engine: Engine, run: Run, precision: str, repeats: int, limit: float) -> dict[str, Any]:
    """The figures of one run; `limit` in GB/s."""
    first = seconds(engine, run, run.tokens)
    with collector_off():
        whole = min(seconds(engine, run, run.tokens) for _ in range(repeats))
        prefill = min(seconds(engine, run, 1) for _ in range(repeats))
    step = (whole - prefill) / (run.tokens - 1)
    dtype = engine.model.embedding.weight.dtype
    size = bytes_read(engine.model.config, run, dtype.itemsize, 1 if precision == "fp8" else dtype.itemsize)
    return {
        "batch": run.batch,
        "precision": precision,
        "prompt": run.prompt,
        "tokens": run.tokens,
        "temperature": run.temperature,
        "tok_s": run.batch / step,
        "ms_token": step * 1e3,
        "bytes_token": size,
        "gb_s": size / step / 1e9,
        "limit_gb_s": limit,
        "share": size / step / 1e9 / limit,
        "prefill_ms": prefill * 1e3,
        "compile_s": first - whole,
    }


def runs(args: argparse.Namespace, config: GPTConfig, device: torch.device) -> list[Run]:
    """What to generate, one run a batch; UserError when the context is too short for it."""
    prompt = min(128, config.context // 4) if args.prompt is None else args.prompt
    tokens = min(256, config.context - prompt) if args.tokens is None else args.tokens
    if tokens < 2 or prompt < 1 or prompt + tokens > config.context:
        raise UserError(
            f"found a prompt of {prompt} and {tokens} new tokens; expected at least 1 and 2, and together at most the "
            f"context of {config.context}"
        )
    single = device.type != "cuda" or args.precision == "fp8"
    batches = args.batch or ([1] if single else [1, 8, 64])
    if args.precision == "fp8" and batches != [1]:
        raise UserError("weights in fp8 serve a single row: leave --batch at 1")
    return [Run(batch, prompt, tokens, args.temperature) for batch in batches]


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    device = first_device()
    config = config_of(args)
    wanted = runs(args, config, device)
    precision = args.precision or ("bf16" if device.type == "cuda" else "fp32")
    engine = Engine(random_model(config, DTYPES[precision], device), frozenset(), fp8_weights=precision == "fp8")
    limit = read_gbps(device)
    facts = header("decode", device) | {
        "width": config.width,
        "layers": config.layers,
        "context": config.context,
        "params": sum(parameter.numel() for parameter in engine.model.parameters()),
        "copy_gb_s": copy_gbps(device),
    }
    for run in wanted:
        report(facts | measure(engine, run, precision, args.repeats, limit), args.json)


if __name__ == "__main__":
    run_main(main)
