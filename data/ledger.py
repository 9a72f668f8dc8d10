"""What a build of shards has finished, kept beside the shards: so that it goes on after a kill, and so that a shard
that is missing or damaged is built again alone.

A piece is one file with the documents in it. Documents come in a fixed order, and a piece holds so many of them from
where the one before it ended; a digest over theirs tells whether the sources still give the same ones.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from config.errors import UserError
from data.manifest import verify_entry


@dataclass(frozen=True)
class Piece:
    """A finished file: its `entry` in the manifest, its `figures` and those of each of the `sources`, how many
    `documents` it holds, their `digest`, whether the sources ended with it (`last`), and whether the file is still as
    it was (`whole`)."""

    entry: dict[str, Any] | None  # None: its documents hold nothing to learn
    figures: dict[str, int]
    sources: list[dict[str, int]]
    documents: int
    digest: str
    last: bool
    whole: bool = field(default=True, compare=False)


class Chain:
    """A digest over documents' digests, in order."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.documents = 0

    def add(self, digest: bytes) -> None:
        self._hash.update(digest)
        self.documents += 1

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()


class Ledger:
    """The pieces of one build, in a file named by all that decides them but the documents themselves (`key`)."""

    def __init__(self, folder: Path, key: Any) -> None:
        self._folder = folder
        named = hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:32]
        self._path = folder / f".progress-{named}.json"
        self._pieces = list(self._read())

    def known(self) -> list[Piece]:
        """The pieces of earlier builds, their files looked at."""
        return [replace(piece, whole=self._is_whole(piece)) for piece in self._pieces]

    def put(self, at: int, piece: Piece) -> None:
        """Note piece number `at`, new or built again."""
        self._pieces[at : at + 1] = [piece]
        self._write()

    def keep(self, count: int) -> None:
        """Forget all pieces but the first `count`."""
        del self._pieces[count:]
        self._write()

    def _is_whole(self, piece: Piece) -> bool:
        try:
            if piece.entry is not None:
                verify_entry(self._folder, piece.entry)
        except UserError:
            return False
        return True

    def _read(self) -> Iterator[Piece]:
        try:
            for values in json.loads(self._path.read_text()):
                yield Piece(**values)
        except (OSError, ValueError, TypeError):  # none yet, or not ours: everything is built
            return

    def _write(self) -> None:
        temporary = self._path.with_suffix(".tmp")
        temporary.write_text(json.dumps([asdict(piece) for piece in self._pieces]))
        temporary.replace(self._path)
