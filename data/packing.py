"""Documents to rows of equal length, each starting with the document mark, losing nothing.

Best fit from a bounded buffer: a row takes the longest waiting piece, then always the longest that still fits.
Text fills rows to the last position: when nothing fits, a piece is split and goes on in a later row, after a mark.
Chats are not split, unless one is longer than a row; what stays free is padding. This is best-fit-decreasing bin
packing, as in "Fewer Truncations Improve Language Modeling" (Ding et al., 2024), with the buffer as its horizon.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

BUFFER = 1024  # waiting pieces: enough for tight rows, little memory


@dataclass(frozen=True)
class Row:
    """`ids` (L,), `mask` (L,) uint8 with 1 on what is learned, `filled`: positions before the padding."""

    ids: np.ndarray
    mask: np.ndarray
    filled: int


class Packer:
    """Takes documents one by one, gives rows when the buffer is full enough.

    `divisible` pieces (text) may be split to fill a row. `continued` counts documents longer than a row, `divided`
    those split though shorter, `without_targets` dropped parts that hold nothing to learn.
    """

    def __init__(self, row_tokens: int, bos: int, divisible: bool, buffer: int = BUFFER) -> None:
        self._length = row_tokens
        self._bos = bos
        self._divisible = divisible
        self._buffer = buffer
        self._sizes: list[int] = []  # ascending, parallel to _pieces
        self._pieces: list[tuple[np.ndarray, np.ndarray]] = []
        self._waiting = 0  # tokens in the buffer
        self.continued = 0
        self.divided = 0
        self.without_targets = 0

    def add(self, ids: np.ndarray, mask: np.ndarray) -> Iterator[Row]:
        """Take a document, (n,) ids that start with the mark, and give the rows that are ready."""
        self.continued += len(ids) > self._length
        start = 1
        body = self._length - 1
        while len(ids) - start > body:
            yield from self._take(self._marked(ids, mask, start, start + body))
            start += body
        yield from self._take(self._marked(ids, mask, start, len(ids)))

    def finish(self) -> Iterator[Row]:
        """Give the rest; of text only the very last row is padded."""
        while self._pieces:
            yield self._row()

    @staticmethod
    def _marked(ids: np.ndarray, mask: np.ndarray, start: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Tokens `start` to `end` of a document as a piece, after the document mark."""
        return np.concatenate([ids[:1], ids[start:end]]), np.concatenate([mask[:1], mask[start:end]])

    def _take(self, piece: tuple[np.ndarray, np.ndarray]) -> Iterator[Row]:
        ids, mask = piece
        if not mask[1:].any():
            self.without_targets += len(ids) > 1
            return
        self._insert(ids, mask)
        # With less than a row waiting, a row would be padded that later documents could have filled.
        if len(self._pieces) > self._buffer and self._waiting >= self._length:
            yield self._row()

    def _insert(self, ids: np.ndarray, mask: np.ndarray) -> None:
        at = bisect_left(self._sizes, len(ids))  # of equal pieces the oldest goes first
        self._sizes.insert(at, len(ids))
        self._pieces.insert(at, (ids, mask))
        self._waiting += len(ids)

    def _pop(self, at: int) -> tuple[np.ndarray, np.ndarray]:
        self._waiting -= self._sizes.pop(at)
        return self._pieces.pop(at)

    def _row(self) -> Row:
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        room = self._length
        while room and self._pieces:
            at = bisect_right(self._sizes, room) - 1
            if at >= 0:
                part = self._pop(at)
            elif self._divisible:
                part = self._divide(room)
            else:
                break
            parts.append(part)
            room -= len(part[0])
        ids = np.concatenate([*(ids for ids, _ in parts), np.full(room, self._bos)])
        mask = np.concatenate([*(mask for _, mask in parts), np.zeros(room, np.uint8)])
        return Row(ids, mask, self._length - room)

    def _divide(self, room: int) -> tuple[np.ndarray, np.ndarray]:
        """The first `room` tokens of the longest piece; the rest waits on, after a mark of its own."""
        ids, mask = self._pop(-1)
        self.divided += room > 1  # with room for one, the mark alone goes here: it ends the text before it
        self._insert(*self._marked(ids, mask, room, len(ids)))
        return ids[:room], mask[:room]
