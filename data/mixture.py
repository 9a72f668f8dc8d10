"""A mixture: the documents of its sources, each with its weight applied and its side of the validation split.

Both depend on nothing but what the document says: reordering sources, splitting files or storing them in another
format moves no document, and copies of one document never stand on both sides.
"""

import hashlib
import heapq
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from config.errors import UserError
from data.chat import texts
from data.cleaning import clean, is_duplicate
from data.config import MIXTURES, Cleaning, DataConfig, Source
from data.conversation import Conversation, Document
from data.sources import read_source


@dataclass(frozen=True)
class Placed:
    """A document of a mixture: the position of its source in the list, its hash, and its side of the split."""

    document: Document
    source: int
    digest: bytes
    validation: bool


def content_hash(content: str | Conversation) -> bytes:
    """16 bytes that identify what a document says, whatever file or format it came in."""
    if not isinstance(content, str):
        turns = [[message.role, [[part.kind, part.text] for part in message.parts]] for message in content]
        content = json.dumps(turns, ensure_ascii=False, separators=(",", ":"))
    return hashlib.blake2b(content.encode(), digest_size=16).digest()


def in_validation(digest: bytes, share: float) -> bool:
    """Whether a document is kept from training: the same answer whatever else the corpus holds."""
    return int.from_bytes(digest[:8], "little") < share * 2**64


def _selected(digest: bytes, share: float, seed: int) -> bool:
    """Whether a document is in the fixed part that a fractional weight keeps."""
    drawn = hashlib.blake2b(digest, digest_size=8, salt=str(seed).encode()[:16]).digest()
    return int.from_bytes(drawn, "little") < share * 2**64


def place(
    mixture: str,
    sources: tuple[Source, ...],
    seed: int,
    share: float,
    cache_folder: Path,
    counts: list[Counter[str]],
    cleaning: Cleaning,
) -> Iterator[Placed]:
    """Every document of the sources as often as its weight says; those of the validation side at most once a source.

    The passes of a weight above 1 follow each other, so that a row seldom holds two copies of one text.
    `counts` has a counter for each source of what was left out or changed; the first pass fills it. Duplicates are told
    within a pass and after a weight's choice, so that what stays doesn't depend on the order of the sources.
    """
    passes = math.ceil(max((source.weight for source in sources), default=0))
    for turn in range(passes):
        seen: set[bytes] = set()
        for position, source in enumerate(sources):
            left = source.weight - turn
            if left <= 0:
                continue
            counter = counts[position] if turn == 0 else Counter()
            options = source.cleaning or cleaning
            for raw in read_source(source, mixture, seed, cache_folder, counter):
                document = clean(raw, options, counter)
                if document is None:
                    continue
                digest = content_hash(document.content)
                if left < 1 and not _selected(digest, left, seed):
                    continue
                if options.drop_duplicates and is_duplicate(digest, seen, counter):
                    continue
                validation = in_validation(digest, share)
                if turn == 0 or not validation:
                    yield Placed(document, position, digest, validation)


def sample_texts(config: DataConfig, megabytes: float, cache_folder: Path) -> list[str]:
    """Texts to train the tokenizer on: of the training side of all mixtures, each document once.

    The documents with the smallest hashes up to `megabytes` of text, so the sample is the same in whatever order
    they come. Raises UserError when there is no text at all.
    """
    budget = int(megabytes * 1e6)
    held: list[tuple[int, list[str], int]] = []  # a heap, the largest hash first
    known: set[int] = set()
    total = 0
    spare: tuple[int, list[str], int] | None = None  # for a corpus of which all is validation
    for mixture in MIXTURES:
        sources = getattr(config, mixture)
        if not sources:
            continue
        once = tuple(_once(source) for source in sources)
        counters = [Counter[str]() for _ in sources]
        share = config.validation_share
        for placed in place(mixture, once, config.seed, share, cache_folder, counters, config.cleaning):
            rank = -int.from_bytes(placed.digest, "big")
            if rank in known or (total >= budget and rank < held[0][0]):
                continue
            parts = texts(placed.document.content)
            item = (rank, parts, sum(len(part.encode()) for part in parts))
            if placed.validation:
                spare = max(spare, item, key=lambda entry: entry[0]) if spare else item
                continue
            heapq.heappush(held, item)
            known.add(rank)
            total += item[2]
            while total - held[0][2] >= budget:
                dropped = heapq.heappop(held)
                known.discard(dropped[0])
                total -= dropped[2]
    if not held and spare:
        held = [spare]
    if not held:
        raise UserError("the sources hold no text: at least one document that is not empty is needed")
    return _cut([part for _, parts, _ in sorted(held, reverse=True) for part in parts], budget)


def _once(source: Source) -> Source:
    return replace(source, weight=min(source.weight, 1.0))


def _cut(parts: list[str], budget: int) -> list[str]:
    """`parts` in order up to `budget` bytes; in the last one, which is cut, a character counts as one."""
    kept = []
    for part in parts:
        if budget <= 0:
            break
        size = len(part.encode())
        kept.append(part if size <= budget else part[:budget])
        budget -= size
    return kept
