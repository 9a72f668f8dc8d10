"""Encoding much text: tiktoken's BPE with a tokenizer's own merges, in a process for every core.

Both libraries replay the same merges: of two adjacent tokens those first whose union has the lowest id, which is the
order in which the trainer found them. Their regular expressions know different versions of Unicode, though, so text
with characters newer than Python's own tables goes to the tokenizers library, and so does what tiktoken's engine gives
up on (runs of spaces by the hundred thousand). Processes and not threads: the answer is made under Python's lock.
"""

import multiprocessing
import os
import sys
import unicodedata
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import Self

import numpy as np

from data.text import clean_text
from data.tokenizer import SPLIT, Tokenizer, pieces

# SPLIT with one group around the alternatives without look-ahead, which tiktoken's engine then runs as one automaton.
_EASY, _REST = SPLIT.split(r"|\s+(?!\S)")
FAST_SPLIT = rf"(?:{_EASY})|\s+(?!\S){_REST}"

ALONE_CHARACTERS = 10_000_000  # so much is encoded here before processes are started, which takes a second or two
Arrays = list[np.ndarray]


@cache
def _unknown() -> np.ndarray:
    """(code points,) bool: characters that Python's Unicode tables don't know: other libraries' may differ on them."""
    return np.array([unicodedata.category(chr(code)) == "Cn" for code in range(sys.maxunicode + 1)])


def _is_known(text: str) -> bool:
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), np.uint32)
    return not _unknown()[codes].any()


class Encoder:
    """Ids as Tokenizer.encode gives them, several times as fast."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._fast = None
        try:
            import tiktoken
        except ImportError:  # slower then, and the same ids
            return
        size = tokenizer.vocab_size
        ranks = {tokenizer.token_bytes(index): index for index in range(size) if index not in tokenizer.special_ids}
        self._fast = tiktoken.Encoding("tandem", pat_str=FAST_SPLIT, mergeable_ranks=ranks, special_tokens={})

    def encode(self, texts: Sequence[str]) -> Arrays:
        """The ids of each text, (n,) uint32; no marks are added and none recognised."""
        return [np.concatenate([self._piece(piece) for piece in pieces(clean_text(text))]) for text in texts]

    def _piece(self, text: str) -> np.ndarray:
        if self._fast is not None and (text.isascii() or _is_known(text)):
            try:
                return np.frombuffer(array("I", self._fast.encode_ordinary(text)), np.uint32)
            except BaseException as error:  # Rust's panics are no Exceptions
                if type(error).__name__ not in ("PanicException", "ValueError"):
                    raise
        return np.array(self._tokenizer.encode(text), np.uint32)


_encoder: Encoder | None = None  # of a worker process


def _begin(tokenizer: Tokenizer) -> None:
    global _encoder
    _encoder = Encoder(tokenizer)


def _work(texts: Sequence[str]) -> Arrays:
    return _encoder.encode(texts)


class BulkEncoder:
    """An Encoder that works ahead in `workers` processes (by default one a core) once there is much to do, and in this
    process until then. A context manager: it ends them."""

    def __init__(self, tokenizer: Tokenizer, workers: int | None = None, alone: int = ALONE_CHARACTERS) -> None:
        self.workers = workers or os.cpu_count() or 1
        self._tokenizer, self._here = tokenizer, Encoder(tokenizer)
        self._alone = alone
        self._pool: ProcessPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def submit(self, texts: Sequence[str]) -> Callable[[], Arrays]:
        """Begin to encode the texts; what it returns waits for their ids, (n,) uint32 each."""
        self._alone -= sum(map(len, texts))
        if self.workers == 1 or self._alone > 0:
            return lambda: self._here.encode(texts)
        if self._pool is None:
            # Spawned: a fork would copy locks that other threads hold.
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.workers, context, _begin, (self._tokenizer,))
        return self._pool.submit(_work, texts).result
