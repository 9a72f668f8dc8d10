"""How fast text becomes ids, and a vocabulary is learned: Tandem, tokenizers and tiktoken on the same text.

    python -m bench.tokenizer books/ --vocab-size 32768 --megabytes 20

Megabytes of UTF-8 a second, of texts in memory with one vocabulary, which is learned from them first. The libraries
take turns, round by round, and medians are shown, so that what else the machine does hits all alike. `of_tiktoken` is
the ratio to tiktoken's own batch call on as many threads. Without a path the text is of the built-in generator.
"""

import argparse
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from bench.timing import header, report
from config.errors import UserError, run_main
from config.paths import ROOT
from data.bulk import BulkEncoder
from data.chat import texts as texts_of
from data.config import Source
from data.shards import BATCH_CHARACTERS
from data.sources import read_source
from data.tokenizer import SPLIT, Tokenizer


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("path", nargs="?", help="files, as a profile's source; default: the built-in documents")
    parser.add_argument("--vocab-size", type=int, default=32_768)
    parser.add_argument("--megabytes", type=float, default=20.0, help="of text")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(argv)


def read_texts(path: str | None, megabytes: float) -> list[str]:
    """Texts of about so many megabytes from the source's beginning; UserError when there are none."""
    source = Source(path=path) if path else Source(builtin="documents", count=1_000_000)
    found, size = [], 0.0
    for text in _texts(source):
        found.append(text)
        size += len(text.encode())
        if size >= megabytes * 1e6:
            return found
    if not found:
        raise UserError(f"{path} holds no text to encode")
    return found


def _texts(source: Source) -> Iterator[str]:
    for document in read_source(source, "pretrain", 0, ROOT / ".work" / "cache", Counter()):
        yield from texts_of(document.content)


def ways(tokenizer: Tokenizer, bulk: BulkEncoder, threads: int) -> dict[str, Callable[[list[str]], object]]:
    """Each way to encode a list of texts; the first is Tandem's."""
    import tiktoken

    size = tokenizer.vocab_size
    ranks = {tokenizer.token_bytes(index): index for index in range(size) if index not in tokenizer.special_ids}
    other = tiktoken.Encoding("bench", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens={})
    return {
        "tandem": lambda texts: together(bulk, texts),
        f"tiktoken, {threads} threads": lambda texts: other.encode_ordinary_batch(texts, num_threads=threads),
        "tiktoken, 1 thread": lambda texts: [other.encode_ordinary(text) for text in texts],
        "tokenizers, all threads": lambda texts: tokenizer.encode_batch(texts),
        "tokenizers, 1 thread": lambda texts: [tokenizer.encode(text) for text in texts],
    }


def together(bulk: BulkEncoder, texts: list[str]) -> list[np.ndarray]:
    """Ids of the texts, handed over in batches as the shard stage does."""
    batches, size = [[]], 0
    for text in texts:
        batches[-1].append(text)
        size += len(text)
        if size >= BATCH_CHARACTERS:
            batches.append([])
            size = 0
    return [ids for wait in [bulk.submit(batch) for batch in batches] for ids in wait()]


def seconds(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def measure(args: argparse.Namespace) -> dict[str, Any]:
    texts = read_texts(args.path, args.megabytes)
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    trained: list[Tokenizer] = []
    learning = seconds(lambda: trained.append(Tokenizer.train(texts, args.vocab_size)))
    (tokenizer,) = trained
    with BulkEncoder(tokenizer, args.threads, alone=0) as bulk:
        calls = ways(tokenizer, bulk, args.threads)
        unlike = sum(
            ids.tolist() != tokenizer.encode(text) for text, ids in zip(texts, together(bulk, texts), strict=True)
        )
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(args.rounds):
            for name, call in calls.items():
                times[name].append(seconds(lambda call=call: call(texts)))
    speeds = {name: megabytes / statistics.median(taken) for name, taken in times.items()}
    base = speeds[f"tiktoken, {args.threads} threads"]
    return {
        "megabytes": megabytes,
        "texts": len(texts),
        "vocab_size": args.vocab_size,
        "threads": args.threads,
        "learning_s": learning,
        "texts_with_other_ids": unlike,
        "encoding": [{"library": name, "mb_s": speed, "of_tiktoken": speed / base} for name, speed in speeds.items()],
    }


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    report(header("tokenizer", torch.device("cpu")) | measure(args), args.json)


if __name__ == "__main__":
    run_main(main)
