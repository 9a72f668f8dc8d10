"""A look at a profile's data: what its sources give, how well it compresses, how long documents are, what rows hold.

Sources are sampled from their beginning, so a look costs seconds whatever their size; shares and rows are those of the
shards, where there are any. All of it is plain values, for a terminal, a page, or JSON.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend

from data import gpt2
from data.chat import render_batch, texts
from data.cleaning import clean
from data.config import MIXTURES, DataConfig, Source
from data.conversation import Document
from data.manifest import read_manifest, resolve_folder
from data.rows import Rows
from data.sources import read_source
from data.tokenizer import SPECIALS, Tokenizer, pieces

SAMPLE_DOCUMENTS = 500  # of each source, at most
SAMPLE_CHARACTERS = 1_000_000
ROWS = 3  # of each mixture
ROW_CHARACTERS = 4000  # of a row's text that are kept

Segment = tuple[str, str]  # kind ("document", "mark", "learned", "read" or "padding") and text


def look(config: DataConfig, tok: Tokenizer, manifests: dict[str, Path]) -> dict[str, Any]:
    """What the module says, by mixture; `manifests` are the paths of the shards' manifests, which may be missing.

    Raises UserError for a source that can't be read, and for shards that are missing though their manifest is there.
    """
    cache = resolve_folder(config.cache_folder)
    other = gpt2.load(cache)
    found: dict[str, Any] = {"context": config.context, "gpt2": other if isinstance(other, str) else None}
    found["mixtures"] = {}
    for mixture in MIXTURES:
        sources: tuple[Source, ...] = getattr(config, mixture)
        if not sources:
            continue
        path = manifests.get(mixture)
        sharded = read_manifest(path)["sources"] if path and path.exists() else [{}] * len(sources)
        total = sum(figures.get("tokens", 0) for figures in sharded)
        lengths: Counter[int] = Counter()
        entries = []
        for source, figures in zip(sources, sharded, strict=True):
            documents, whole = _sample(source, mixture, config, cache)
            entry = {"source": source.name, "weight": source.weight, "whole": whole, "documents": len(documents)}
            entry["share"] = figures["tokens"] / total if total and "tokens" in figures else None
            entries.append(entry | _compression(documents, tok, None if isinstance(other, str) else other))
            lengths.update(_bin(length) for length in _lengths(documents, tok))
        bins = range(max(lengths) + 1) if lengths else ()
        found["mixtures"][mixture] = {
            "sources": entries,
            "lengths": [[1 << bin, (2 << bin) - 1, lengths[bin]] for bin in bins],
            "rows": rows(path, tok) if path and path.exists() else [],
        }
    return found


def _sample(source: Source, mixture: str, config: DataConfig, cache: Path) -> tuple[list[Document], bool]:
    """A source's first documents, cleaned, and whether that is all of them."""
    counts: Counter[str] = Counter()
    kept: list[Document] = []
    characters = 0
    with closing(read_source(source, mixture, config.seed, cache, counts)) as documents:  # it may be downloading
        for raw in documents:
            document = clean(raw, source.cleaning or config.cleaning, counts)
            if document is None:
                continue
            kept.append(document)
            characters += sum(map(len, texts(document.content)))
            if len(kept) == SAMPLE_DOCUMENTS or characters >= SAMPLE_CHARACTERS:
                return kept, next(documents, None) is None
    return kept, True


def _compression(documents: list[Document], tok: Tokenizer, other: Backend | None) -> dict[str, Any]:
    """Bytes of text, and the bytes that a token of each tokenizer stands for; None without text or tokenizer."""
    parts = [text for document in documents for text in texts(document.content) if text]
    parts = _first(parts, SAMPLE_CHARACTERS)
    size = sum(len(part.encode()) for part in parts)
    tokens = sum(map(len, tok.encode_batch(parts)))
    entry = {"bytes": size, "tokens": tokens, "bytes_per_token": size / tokens if tokens else None}
    others = 0
    if other is not None:
        cut = [piece for part in parts for piece in pieces(part)]
        others = sum(len(encoding.ids) for encoding in other.encode_batch_fast(cut, add_special_tokens=False))
    return entry | {"gpt2_bytes_per_token": size / others if others else None}


def _first(parts: list[str], characters: int) -> list[str]:
    """The first of the parts up to so many characters in all, the last of them cut."""
    kept = []
    for part in parts:
        if characters <= 0:
            break
        kept.append(part[:characters])
        characters -= len(part)
    return kept


def _lengths(documents: list[Document], tok: Tokenizer) -> Iterator[int]:
    """Tokens of each document, marks included; of one too long to encode for a look, by its beginning."""
    for document in documents:
        content = document.content
        if isinstance(content, str):
            start = content[:SAMPLE_CHARACTERS]
            yield 1 + round(len(tok.encode(start)) * len(content) / max(1, len(start)))
        else:
            yield len(render_batch([content], tok)[0][0])


def _bin(length: int) -> int:
    """Lengths from 2**bin to 2**(bin + 1) - 1 are counted together."""
    return max(1, length).bit_length() - 1


def rows(manifest: Path, tok: Tokenizer) -> list[list[Segment]]:
    """A few rows of the training split, from its beginning to its end, as segments."""
    split = Rows(manifest, "train")
    indices = np.unique(np.linspace(0, len(split) - 1, ROWS).astype(int))
    pairs = zip(split.ids(indices).tolist(), split.mask(indices).tolist(), strict=True)
    return [_segments(ids, mask, tok) for ids, mask in pairs]


def _segments(ids: list[int], mask: list[int], tok: Tokenizer) -> list[Segment]:
    """A row cut where a document begins, at the marks of chats, and where learning begins or ends."""
    end = len(ids)
    while end > 1 and ids[end - 1] == tok.bos:
        end -= 1
    found: list[Segment] = []
    run: list[int] = []
    left = ROW_CHARACTERS

    def flush(learned: int) -> None:
        nonlocal left
        if run and left > 0:
            text = tok.decode(run)
            found.append(("learned" if learned else "read", text[:left] + ("…" if len(text) > left else "")))
            left -= len(text)
        run.clear()

    for position, (index, learned) in enumerate(islice(zip(ids, mask, strict=True), end)):
        if position and (index in tok.special_ids or learned != mask[position - 1]):
            flush(mask[position - 1])
        if index == tok.bos:
            found.append(("document", ""))
        elif index in tok.special_ids:
            found.append(("mark", SPECIALS[index - tok.vocab_size]))
        else:
            run.append(index)
    flush(mask[end - 1])
    if end < len(ids):
        found.append(("padding", f"{len(ids) - end:,} positions"))
    return found
