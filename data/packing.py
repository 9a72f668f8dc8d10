"""Documents to rows of equal length, each starting with the document mark, losing nothing.

From a bounded buffer: a row begins with the documents that have waited longest, and ends with the one or two that
fill it exactly, or else with the longest that still fits. Text fills rows to the last position: when nothing fits, a
piece is split and goes on in a later row, after a mark. Chats are not split, unless one is longer than a row; what
stays free is padding. For best fit against plain cutting see "Fewer Truncations Improve Language Modeling" (Ding et
al., 2024).
"""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

BUFFER = 1024  # waiting pieces: enough for tight rows, little memory

# The last pieces of a row are chosen from here on, in mean lengths of those waiting: room for a choice of sums, and
# not so much that the long ones are always taken first, which leaves only short ones and then nothing for the gap.
_CHOICE = 3


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
        self._pieces: dict[int, tuple[np.ndarray, np.ndarray]] = {}  # by number, so the oldest is the first
        self._sizes: list[tuple[int, int]] = []  # (tokens, -number), ascending: of equal ones the oldest is the last
        self._number = 0
        self._draining = False
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
        self._draining = True
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
        if len(ids) == self._length:
            yield Row(ids, mask, self._length)
            return
        self._insert(ids, mask)
        # With less than a row waiting, a row would be padded that later documents could have filled.
        if len(self._pieces) > self._buffer and self._waiting >= self._length:
            yield self._row()

    def _insert(self, ids: np.ndarray, mask: np.ndarray) -> None:
        self._number += 1
        self._pieces[self._number] = ids, mask
        insort(self._sizes, (len(ids), -self._number))
        self._waiting += len(ids)

    def _pop(self, at: int) -> tuple[np.ndarray, np.ndarray]:
        size, number = self._sizes.pop(at)
        self._waiting -= size
        return self._pieces.pop(-number)

    def _row(self) -> Row:
        parts: list[tuple[np.ndarray, np.ndarray]] = []
        room = self._length
        while room and self._pieces:
            number, (oldest, _) = next(iter(self._pieces.items()))
            early = not parts or room * len(self._pieces) > _CHOICE * self._waiting
            if early and not self._draining and len(oldest) <= room:
                part = self._pop(bisect_left(self._sizes, (len(oldest), -number)))
            elif self._sizes[0][0] <= room:
                part = self._pop(self._best(room))
            elif self._divisible:
                part = self._divide(room)
            else:
                break
            parts.append(part)
            room -= len(part[0])
        ids = np.concatenate([*(ids for ids, _ in parts), np.full(room, self._bos)])
        mask = np.concatenate([*(mask for _, mask in parts), np.zeros(room, np.uint8)])
        return Row(ids, mask, self._length - room)

    def _best(self, room: int) -> int:
        """Where the piece is that fills `room`, alone or with one other, else the longest that fits."""
        longest = bisect_right(self._sizes, (room, 0)) - 1
        short, long = 0, longest
        if self._sizes[longest][0] < room:
            while short < long and (both := self._sizes[short][0] + self._sizes[long][0]) != room:
                short, long = (short + 1, long) if both < room else (short, long - 1)
        return long if short < long else longest

    def _divide(self, room: int) -> tuple[np.ndarray, np.ndarray]:
        """The first `room` tokens of the longest piece; the rest waits on, after a mark of its own."""
        ids, mask = self._pop(-1)
        self.divided += room > 1  # with room for one, the mark alone goes here: it ends the text before it
        self._insert(*self._marked(ids, mask, room, len(ids)))
        return ids[:room], mask[:room]
