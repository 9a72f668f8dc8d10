"""A mixture as files of rows, and the manifest that names them.

Rows are `context` + 1 token ids, uint16 or uint32, one after the other in .bin files; mixtures with a loss mask have
a .mask file of the same shape in uint8 beside each. Files are named by their content, in a folder that profiles
share, and appear whole or not at all. The manifest, one JSON a mixture, is what DVC tracks and what is verified
before training.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

from config.errors import UserError
from data.bulk import BulkEncoder
from data.chat import render_batch
from data.cleaning import CHANGED
from data.config import DataConfig, Source
from data.ledger import Chain, Ledger, Piece
from data.manifest import FORMAT, resolve_folder
from data.mixture import Placed, place
from data.packing import Packer
from data.progress import Progress
from data.remote import known_sizes, provenance
from data.shard_files import ShardWriter, disk_full, sweep
from data.sources import list_files
from data.tokenizer import Tokenizer

MASKED = ("sft",)  # loss on the assistant's tokens only; elsewhere on all

TOKENS_PER_FILE = 10_000_000  # what a kill costs, and what is built again for a damaged file
_BATCH_DOCUMENTS = 2048
BATCH_CHARACTERS = 1_000_000
_TOKENS_PER_BYTE = 0.3  # for the estimate of a full disk's message only
_UNPACKED = {".gz": 3.5, ".parquet": 2.5}


def build(
    mixture: str, sources: tuple[Source, ...], tok: Tokenizer, config: DataConfig, manifest: Path, work_folder: Path
) -> dict[str, Any]:
    """Tokenise and pack a mixture, write its shards and its `manifest`, and return that.

    The same sources, tokenizer and config give the same bytes. A corpus too small to spare a document for validation
    validates on the one with the smallest hash, and the manifest says so. Raises UserError for sources without any
    text, and for a full disk.
    """
    if not sources:
        raise UserError(f"data.{mixture} names no source; give at least one")
    folder = resolve_folder(config.shard_folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        sweep(folder)
        content = _Build(mixture, sources, tok, config, folder, work_folder).run()
        manifest.parent.mkdir(parents=True, exist_ok=True)
        temporary = manifest.with_name(manifest.name + ".tmp")
        temporary.write_text(json.dumps(content, indent=1) + "\n")
        temporary.replace(manifest)
    except OSError as error:
        cache = resolve_folder(config.cache_folder)
        raise disk_full(error, folder, _estimate(sources, tok, mixture, cache)) from error
    return content


def _estimate(sources: tuple[Source, ...], tok: Tokenizer, mixture: str, cache_folder: Path) -> float:
    """Roughly the bytes that a mixture's shards take."""
    text = 0.0
    for source in sources:
        if source.builtin is not None:
            text += source.weight * 400 * (source.count or 0)
            continue
        sizes = known_sizes(source, cache_folder)
        if source.path is not None:
            sizes = [(file.name, file.stat().st_size) for file in list_files(source)]
        text += source.weight * sum(size * _UNPACKED.get(Path(name).suffix, 1.0) for name, size in sizes)
    return text * _TOKENS_PER_BYTE * (_dtype(tok.vocab_size).itemsize + (mixture in MASKED))


def _dtype(vocab_size: int) -> np.dtype:
    return np.dtype("<u2" if vocab_size <= 1 << 16 else "<u4")


def _skipped_and_changed(counts: Counter[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Documents by the reason why they were left out, and those that stayed by what was found in them."""
    skipped = {why: count for why, count in sorted(counts.items()) if why not in CHANGED}
    return skipped, {why: count for why, count in sorted(counts.items()) if why in CHANGED}


class _Build:
    """One mixture on its way from sources to files."""

    def __init__(
        self,
        mixture: str,
        sources: tuple[Source, ...],
        tok: Tokenizer,
        config: DataConfig,
        folder: Path,
        work_folder: Path,
    ) -> None:
        self._mixture, self._sources, self._tok, self._config = mixture, sources, tok, config
        self._folder, self._cache = folder, resolve_folder(config.cache_folder)
        self._masked = mixture in MASKED
        self._row_tokens = config.context + 1
        self._counts = [Counter[str]() for _ in sources]
        self._figures = [Counter[str]() for _ in sources]

    def run(self) -> dict[str, Any]:
        share = self._config.validation_share
        splits, validation = self._splits(share)
        if not splits and validation == "all":
            # Every document fell on the validation side: a corpus of a few. Train on all of them.
            splits, validation = self._splits(0.0)
        if not splits:
            skipped, _ = _skipped_and_changed(sum(self._counts, Counter()))
            left_out = ", ".join(f"{count} {why}" for why, count in skipped.items())
            raise UserError(
                f"data.{self._mixture}: its sources hold no document to train on"
                f"{f' (left out: {left_out})' if left_out else ''}; give at least one that is not empty"
            )
        return {
            "format": FORMAT,
            "mixture": self._mixture,
            "context": self._config.context,
            "vocab_size": self._tok.vocab_size,
            "tokenizer_sha256": self._tok.sha256,
            "dtype": _dtype(self._tok.vocab_size).str,
            "masked": self._masked,
            "seed": self._config.seed,
            "validation_share": share,
            "validation": validation,
            "folder": self._config.shard_folder,
            "splits": splits,
            "sources": [
                {
                    "source": source.name,
                    "weight": source.weight,
                    **figures,
                    "skipped": skipped,
                    "changed": changed,
                    **provenance(source, self._cache),
                }
                for source, figures, (skipped, changed) in zip(
                    self._sources, self._figures, map(_skipped_and_changed, self._counts), strict=True
                )
            ],
        }

    def _splits(self, share: float) -> tuple[dict[str, Any], str]:
        """The figures of both splits; empty, with "all", when no document is left to train on."""
        config = self._config
        decisive = [FORMAT, self._mixture, config.context, self._tok.sha256, config.seed, share, TOKENS_PER_FILE]
        ledger = Ledger(
            self._folder, [*decisive, asdict(config.cleaning), [asdict(source) for source in self._sources]]
        )
        while True:
            try:
                return self._split(share, ledger)
            except _OtherDocumentsError as other:  # the sources were changed: the pieces before it still hold
                ledger.keep(other.piece)

    def _split(self, share: float, ledger: Ledger) -> tuple[dict[str, Any], str]:
        for counter in (*self._counts, *self._figures):
            counter.clear()
        self._smallest: Placed | None = None
        validation: dict[bytes, np.ndarray] = {}
        known = ledger.known()
        if known:
            whole = sum(piece.whole for piece in known)
            print(f"{self._mixture}: {whole} of {len(known)} shards of an earlier build are whole and stay", flush=True)
        pieces: list[Piece] = []
        shard: _Shard | None = None
        try:
            with Progress(f"sharding {self._mixture}") as progress:
                for placed, tokens in self._tokenized(self._to_do(share, known)):
                    text_bytes = int(self._tok.byte_lengths[tokens[0]].sum())
                    if placed.validation:
                        new = placed.digest not in validation  # the same text in two sources counts once
                        validation[placed.digest] = tokens
                        what = "validation_documents" if new else "validation_duplicates"
                        _count(self._figures[placed.source], what, tokens, text_bytes)
                        continue
                    if shard is None:
                        pieces += _next_whole(known, len(pieces))
                        shard = _Shard(self._writer(), len(self._sources))
                    shard.add(placed, tokens, text_bytes)
                    progress.advance(tokens.shape[1], text_bytes)
                    if shard.writer.tokens >= TOKENS_PER_FILE:
                        pieces.append(shard.finish(last=False))
                        ledger.put(len(pieces) - 1, pieces[-1])
                        shard = None
                if shard is not None:
                    pieces.append(shard.finish(last=True))
                    ledger.put(len(pieces) - 1, pieces[-1])
                    shard = None
                pieces += _next_whole(known, len(pieces))
        finally:
            if shard is not None:
                shard.writer.discard()
        train = _sum([piece.figures for piece in pieces])
        if self._smallest is None or not train["rows"]:
            return {}, "all" if validation else "none"
        train["files"] = [piece.entry for piece in pieces if piece.entry is not None]
        for at, figures in enumerate(self._figures):
            figures.update(_sum([piece.sources[at] for piece in pieces]))
        kind = "held out"
        if not validation:
            kind = "not held out: too few documents, so the one with the smallest hash serves for both"
            ((_, tokens),) = self._tokenized([self._smallest])
            validation = {self._smallest.digest: tokens}
        writer = self._writer()
        try:
            for digest in sorted(validation):  # the rows do not depend on the order of the sources
                writer.add(validation[digest][0], validation[digest][1])
            entry, figures = writer.finish()
        finally:
            writer.discard()
        held_out = figures | {"files": [] if entry is None else [entry]}
        return {"train": train, "validation": held_out}, kind

    def _writer(self) -> ShardWriter:
        packer = Packer(self._row_tokens, self._tok.bos, divisible=not self._masked)
        return ShardWriter(self._folder, packer, _dtype(self._tok.vocab_size), self._masked, self._tok.byte_lengths)

    def _to_do(self, share: float, known: list[Piece]) -> Iterator[Placed]:
        """The documents, but those to train on that lie in whole pieces. Raises _OtherDocumentsError where the sources
        no longer give the documents of a piece."""
        counts, cleaning = self._counts, self._config.cleaning
        at, chain = 0, Chain()
        for placed in place(self._mixture, self._sources, self._config.seed, share, self._cache, counts, cleaning):
            if placed.validation:
                yield placed
                continue
            if self._smallest is None or placed.digest < self._smallest.digest:
                self._smallest = placed
            if at == len(known):
                if known and known[-1].last:
                    raise _OtherDocumentsError(at - 1)
                yield placed
                continue
            chain.add(placed.digest)
            if not known[at].whole:
                yield placed
            if chain.documents == known[at].documents:
                if chain.digest != known[at].digest:
                    raise _OtherDocumentsError(at)
                at, chain = at + 1, Chain()
        if at < len(known):
            raise _OtherDocumentsError(at)

    def _tokenized(self, documents: Iterable[Placed]) -> Iterator[tuple[Placed, np.ndarray]]:
        """Each document with its tokens: (2, n), ids from the document mark on and the loss mask."""
        with BulkEncoder(self._tok) as bulk:
            ahead: deque[tuple[list[Placed], Callable[[], list[np.ndarray]]]] = deque()
            for batch in _batches(documents):
                ahead.append((batch, bulk.submit([p.document.content for p in batch if not p.document.is_chat])))
                if len(ahead) > bulk.workers:
                    yield from self._finished(*ahead.popleft())
            while ahead:
                yield from self._finished(*ahead.popleft())

    def _finished(
        self, batch: Sequence[Placed], texts: Callable[[], list[np.ndarray]]
    ) -> Iterator[tuple[Placed, np.ndarray]]:
        chats = [placed.document.content for placed in batch if placed.document.is_chat]
        rendered, encoded = iter(render_batch(chats, self._tok)), iter(texts())
        for placed in batch:
            if placed.document.is_chat:
                ids, mask = next(rendered)
                tokens = np.array([ids, mask if self._masked else [1] * len(ids)], np.int32)
            elif self._masked:
                raise UserError(
                    f"{placed.document.source}: plain text in data.{self._mixture}, where loss is on the assistant's "
                    "words alone; move it to data.pretrain or data.midtrain"
                )
            else:
                ids = next(encoded)
                tokens = np.ones((2, 1 + len(ids)), np.int32)
                tokens[0, 0] = self._tok.bos
                tokens[0, 1:] = ids
            yield placed, tokens


class _OtherDocumentsError(Exception):
    """The documents are no longer those of an earlier build, from piece number `piece` on."""

    def __init__(self, piece: int) -> None:
        super().__init__(piece)
        self.piece = piece


class _Shard:
    """A file in the making, with what the ledger wants to know of it."""

    def __init__(self, writer: ShardWriter, sources: int) -> None:
        self.writer = writer
        self._chain = Chain()
        self._sources = [Counter[str]() for _ in range(sources)]

    def add(self, placed: Placed, tokens: np.ndarray, text_bytes: int) -> None:
        self.writer.add(tokens[0], tokens[1])
        self._chain.add(placed.digest)
        _count(self._sources[placed.source], "documents", tokens, text_bytes)

    def finish(self, last: bool) -> Piece:
        entry, figures = self.writer.finish()
        sources = [dict(counter) for counter in self._sources]
        return Piece(entry, figures, sources, self._chain.documents, self._chain.digest, last)


def _count(figures: Counter[str], what: str, tokens: np.ndarray, text_bytes: int) -> None:
    figures.update({what: 1, "tokens": tokens.shape[1], "text_bytes": text_bytes})


def _next_whole(known: list[Piece], start: int) -> list[Piece]:
    """The whole pieces that follow each other from `start` on."""
    return list(takewhile(lambda piece: piece.whole, known[start:]))


def _sum(counts: list[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for each in counts:
        total.update(each)
    return dict(total)


def _batches(documents: Iterable[Placed]) -> Iterator[list[Placed]]:
    """Batches bounded in documents and, as far as single documents allow, in characters."""
    batch: list[Placed] = []
    characters = 0
    for placed in documents:
        batch.append(placed)
        content = placed.document.content
        characters += len(content) if isinstance(content, str) else sum(len(message.text) for message in content)
        if len(batch) == _BATCH_DOCUMENTS or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch
