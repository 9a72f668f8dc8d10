"""Writing rows to files that are named by their content and appear whole or not at all."""

import contextlib
import errno
import hashlib
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from config.errors import UserError
from data.manifest import mask_name
from data.packing import Packer, Row
from data.text import readable_size

_SHARD = re.compile(r"[0-9a-f]{32}\.(bin|mask)")
_TEMPORARY = re.compile(r"\.writing-(\d+)\.(bin|mask)")


def sweep(folder: Path) -> None:
    """Remove what a killed build left half written."""
    for path in folder.glob(".writing-*"):
        match = _TEMPORARY.fullmatch(path.name)
        if match and (int(match[1]) == os.getpid() or not psutil.pid_exists(int(match[1]))):
            path.unlink(missing_ok=True)


def prune(folder: Path, manifests: Iterable[dict[str, Any]], spare_bytes: float) -> list[tuple[str, int]]:
    """Delete shards that no manifest names, oldest first, until at most `spare_bytes` of them are left.

    Returns the names and sizes of what went. The spare ones serve when a setting is set back: DVC restores the
    manifest then, not the shards.
    """
    kept = {
        name
        for manifest in manifests
        for split in manifest["splits"].values()
        for entry in split["files"]
        for name in (entry["name"], mask_name(entry["name"]))
    }
    spare = [
        (path.stat(), path) for path in folder.glob("*.*") if path.name not in kept and _SHARD.fullmatch(path.name)
    ]
    total = sum(status.st_size for status, _ in spare)
    gone = []
    for status, path in sorted(spare, key=lambda item: (item[0].st_mtime_ns, item[1])):
        if total <= spare_bytes:
            break
        path.unlink(missing_ok=True)
        total -= status.st_size
        gone.append((path.name, status.st_size))
    return gone


def disk_full(error: OSError, folder: Path, needed: float) -> Exception:
    """`error` for the user if it means a full disk or a folder that cannot be written, else itself."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = shutil.disk_usage(folder).free
        return UserError(
            f"{folder}: disk full: about {readable_size(needed)} needed, {readable_size(free)} free; "
            "make room, or set data.shard_folder to another disk"
        )
    if error.errno in (errno.EACCES, errno.EROFS, errno.EEXIST, errno.ENOTDIR):
        return UserError(f"{error.filename or folder}: {error.strerror}; set data.shard_folder to a folder to write in")
    return error


class ShardWriter:
    """Packs documents into rows and writes them to one file, or two with masks, that appear when it is finished."""

    def __init__(self, folder: Path, packer: Packer, dtype: np.dtype, masked: bool, byte_lengths: np.ndarray) -> None:
        self._folder, self._packer, self._dtype, self._masked = folder, packer, dtype, masked
        self._byte_lengths = byte_lengths
        self._open: list[_Writing] = []
        self.tokens = 0  # of the documents taken
        self._figures = dict.fromkeys(
            ("rows", "documents", "tokens", "targets", "padding", "text_bytes", "target_bytes"), 0
        )

    def discard(self) -> None:
        """Remove what is not finished; nothing afterwards."""
        for file in self._open:
            file.discard()
        self._open = []

    def add(self, ids: np.ndarray, mask: np.ndarray) -> None:
        """Take a document: (n,) ids from the document mark on, and its loss mask."""
        self.tokens += len(ids)
        self._figures["documents"] += 1
        self._figures["text_bytes"] += int(self._byte_lengths[ids].sum())
        for row in self._packer.add(ids, mask):
            self._write(row)

    def finish(self) -> tuple[dict[str, Any] | None, dict[str, int]]:
        """Write what waits and publish; the file's entry for the manifest (None: not one row), and the figures."""
        for row in self._packer.finish():
            self._write(row)
        packing = {name: getattr(self._packer, name) for name in ("continued", "divided", "without_targets")}
        return self._publish(), self._figures | packing

    def _write(self, row: Row) -> None:
        if not self._open:
            self._open = [_Writing(self._folder, suffix) for suffix in ("bin", "mask")[: 1 + self._masked]]
        self._open[0].write(row.ids.astype(self._dtype).tobytes())
        if self._masked:
            self._open[1].write(row.mask.astype(np.uint8).tobytes())
        learned = row.ids[1:][row.mask[1:] > 0]
        self._figures["rows"] += 1
        self._figures["tokens"] += row.filled
        self._figures["padding"] += len(row.ids) - row.filled
        self._figures["targets"] += len(learned)
        self._figures["target_bytes"] += int(self._byte_lengths[learned].sum())

    def _publish(self) -> dict[str, Any] | None:
        if not self._open:
            return None
        digest, size = self._open[0].finish()
        name = f"{digest[:32]}.bin"
        entry = {"name": name, "rows": self._figures["rows"], "padding": self._figures["padding"]}
        entry |= {"bytes": size, "sha256": digest}
        if self._masked:
            entry["mask_sha256"], entry["mask_bytes"] = self._open[1].finish()
            # Equal ids may go with another mask: the pair is named by both.
            both = hashlib.sha256(f"{digest} {entry['mask_sha256']}".encode()).hexdigest()
            entry["name"] = name = f"{both[:32]}.bin"
            self._open[1].publish(self._folder / mask_name(name))
        self._open[0].publish(self._folder / name)
        self._open = []
        return entry


class _Writing:
    """A file under a temporary name, hashed as it is written."""

    def __init__(self, folder: Path, suffix: str) -> None:
        self._path = folder / f".writing-{os.getpid()}.{suffix}"
        self._stream = self._path.open("wb", buffering=1 << 20)
        self._hash = hashlib.sha256()
        self._size = 0

    def write(self, content: bytes) -> None:
        self._stream.write(content)
        self._hash.update(content)
        self._size += len(content)

    def finish(self) -> tuple[str, int]:
        """Put it on the disk for good; its SHA-256 and size."""
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        return self._hash.hexdigest(), self._size

    def publish(self, path: Path) -> None:
        self._path.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def discard(self) -> None:
        with contextlib.suppress(OSError):  # on a full disk the buffer's rest cannot be written either
            self._stream.close()
        self._path.unlink(missing_ok=True)
