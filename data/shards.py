"""A mixture as files of rows, and the manifest that names them.

Rows are `context` + 1 token ids, uint16 or uint32, one after the other in .bin files; mixtures with a loss mask have
a .mask file of the same shape in uint8 beside each. Files are named by their content, in a folder that profiles
share, and appear whole or not at all. The manifest, one JSON a mixture, is what DVC tracks and what is verified
before training.
"""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from config.errors import UserError
from data.bulk import BulkEncoder
from data.chat import render_batch
from data.cleaning import CHANGED
from data.config import DataConfig, Source
from data.manifest import FORMAT, resolve_folder
from data.mixture import Placed, place
from data.packing import Packer
from data.progress import Progress
from data.remote import known_sizes, provenance
from data.shard_files import ShardWriter, disk_full, sweep
from data.sources import list_files
from data.tokenizer import Tokenizer

MASKED = ("sft",)  # loss on the assistant's tokens only; elsewhere on all

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
        for counter in (*self._counts, *self._figures):
            counter.clear()
        validation: dict[bytes, np.ndarray] = {}
        smallest: tuple[bytes, np.ndarray] | None = None
        with Progress(f"sharding {self._mixture}") as progress, self._writer() as writer:
            for placed, tokens in self._tokenized(share):
                if placed.validation:
                    new = placed.digest not in validation  # the same text in two sources counts once
                    validation[placed.digest] = tokens
                    self._count(placed, tokens, "validation_documents" if new else "validation_duplicates")
                    continue
                if smallest is None or placed.digest < smallest[0]:
                    smallest = (placed.digest, tokens)
                writer.add(tokens[0], tokens[1])
                self._count(placed, tokens, "documents")
                progress.advance(tokens.shape[1], int(self._tok.byte_lengths[tokens[0]].sum()))
            train = writer.finish()
        if smallest is None or not train["rows"]:
            return {}, "all" if validation else "none"
        kind = "held out"
        if not validation:
            kind = "not held out: too few documents, so the one with the smallest hash serves for both"
            validation = dict([smallest])
        with self._writer() as writer:
            for digest in sorted(validation):  # the rows do not depend on the order of the sources
                writer.add(validation[digest][0], validation[digest][1])
            return {"train": train, "validation": writer.finish()}, kind

    def _writer(self) -> ShardWriter:
        packer = Packer(self._row_tokens, self._tok.bos, divisible=not self._masked)
        return ShardWriter(self._folder, packer, _dtype(self._tok.vocab_size), self._masked, self._tok.byte_lengths)

    def _count(self, placed: Placed, tokens: np.ndarray, what: str) -> None:
        figures = self._figures[placed.source]
        figures[what] += 1
        figures["tokens"] += tokens.shape[1]
        figures["text_bytes"] += int(self._tok.byte_lengths[tokens[0]].sum())

    def _tokenized(self, share: float) -> Iterator[tuple[Placed, np.ndarray]]:
        """Each document with its tokens: (2, n), ids from the document mark on and the loss mask."""
        counts, cleaning = self._counts, self._config.cleaning
        documents = place(self._mixture, self._sources, self._config.seed, share, self._cache, counts, cleaning)
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


def _batches(documents: Iterator[Placed]) -> Iterator[list[Placed]]:
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
