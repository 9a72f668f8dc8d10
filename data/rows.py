"""Reading shards: rows of token ids by number, memory-mapped."""

from functools import cached_property
from pathlib import Path

import numpy as np

from data.manifest import mask_name, read_manifest, resolve_folder, verify

IGNORE = -1  # a target that is not learned


class Rows:
    """The rows of one split ("train" or "validation") of a manifest. Safe to share between threads.

    Raises UserError, naming the file, if one is missing or has another size than the manifest says; `verify` in
    data.manifest also compares hashes.
    """

    def __init__(self, manifest_path: Path | str, split: str) -> None:
        self.manifest = read_manifest(Path(manifest_path))
        verify(self.manifest, full=False)
        self.figures: dict = self.manifest["splits"][split]
        self.context: int = self.manifest["context"]
        folder = resolve_folder(self.manifest["folder"])
        width = self.context + 1
        entries = self.figures["files"]
        self._ids = [
            np.memmap(folder / entry["name"], self.manifest["dtype"], "r", shape=(entry["rows"], width))
            for entry in entries
        ]
        self._masks = [
            np.memmap(folder / mask_name(entry["name"]), np.uint8, "r", shape=(entry["rows"], width))
            for entry in entries
            if "mask_sha256" in entry
        ]
        self._ends = np.cumsum([entry["rows"] for entry in entries])
        # Rows without a mask file are full, but for the end of each file's last one.
        self._padding = [(int(end) - 1, entry["padding"]) for end, entry in zip(self._ends, entries, strict=True)]
        self._padding = dict(pair for pair in self._padding if pair[1] and not self._masks)

    def __len__(self) -> int:
        return self.figures["rows"]

    def ids(self, indices: np.ndarray) -> np.ndarray:
        """(n, T+1) int64: the tokens of the rows."""
        return self._gather(self._ids, np.asarray(indices), np.int64)

    def mask(self, indices: np.ndarray) -> np.ndarray:
        """(n, T+1) uint8: 1 where a token is learned, so that column j goes with ids[:, j] as a target."""
        indices = np.asarray(indices)
        if self._masks:
            return self._gather(self._masks, indices, np.uint8)
        mask = np.ones((len(indices), self.context + 1), np.uint8)
        for row, padding in self._padding.items():
            mask[indices == row, -padding:] = 0
        return mask

    def read(self, indices: np.ndarray, inputs: np.ndarray, targets: np.ndarray) -> None:
        """Write the rows into `inputs` (n, T) and their next tokens into `targets` (n, T), IGNORE where they are not
        learned: int64, in place, without other memory."""
        which = np.searchsorted(self._ends, indices, side="right")
        for at, (index, number) in enumerate(zip(indices.tolist(), which.tolist(), strict=True)):
            row = index - int(self._ends[number]) + len(self._ids[number])
            ids, target = self._ids[number][row], targets[at]
            inputs[at] = ids[:-1]
            target[:] = ids[1:]
            if self._masks:
                target -= IGNORE  # as id + 1, so that 0 stands where nothing is learned
                target *= self._masks[number][row, 1:]
                target += IGNORE
            elif padding := self._padding.get(index):
                target[-padding:] = IGNORE

    def targets(self, indices: np.ndarray) -> int:
        """How many targets of these rows are learned."""
        if self._masks:
            return int(self.target_counts[indices].sum())
        return len(indices) * self.context - sum(self._padding.get(row, 0) for row in indices.tolist())

    @cached_property
    def target_counts(self) -> np.ndarray:
        """(rows,) int64: how many of a row's T targets are learned."""
        if self._masks:
            return np.concatenate([mask[:, 1:].sum(axis=1, dtype=np.int64) for mask in self._masks])
        counts = np.full(len(self), self.context, np.int64)
        for row, padding in self._padding.items():
            counts[row] -= padding
        return counts

    def _gather(self, files: list[np.memmap], indices: np.ndarray, dtype: type) -> np.ndarray:
        rows = np.empty((len(indices), self.context + 1), dtype)
        which = np.searchsorted(self._ends, indices, side="right")
        for number in np.unique(which):
            here = which == number
            first = self._ends[number] - len(files[number])
            rows[here] = files[number][indices[here] - first]
        return rows
