"""Sources whose files lie elsewhere: which files those are, and a local copy of each in the profile's cache folder.

A copy counts when it is whole (`data.downloads`). While one file is read, the next is downloaded.
"""

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from typing import Any

from config.files import read_json
from data import hub
from data.config import Source
from data.downloads import Patience, fetch, local_path
from data.text import readable_size

PATIENCE = Patience()

_TOLD_EVERY = 30.0  # seconds between two lines about a long download
_QUIET_BYTES = 20_000_000  # a smaller file is not worth a line


@dataclass(frozen=True)
class RemoteFile:
    """One file to have here: its URL, what messages and manifests call it, what it has to be, its kind's suffix."""

    url: str
    shown: str
    sha256: str | None
    bytes: int | None
    suffix: str
    bearer: str | None = None


def is_remote(source: Source) -> bool:
    """Whether a source's files have to be downloaded."""
    return source.url is not None or source.hub is not None


def remote_files(source: Source, cache_folder: Path) -> list[RemoteFile]:
    """The files of a source with a `url` or a `hub`. Raises UserError where they can't be told."""
    if source.url is not None:
        suffix = f".{source.format}" if source.format else ""
        return [RemoteFile(source.url, source.name, source.sha256, source.bytes, suffix)]
    found, bearer = hub.listing(source, cache_folder, PATIENCE), hub.token()
    return [
        RemoteFile(
            url=hub.file_url(source, found.commit, file.path),
            shown=f"hub:{source.hub}/{file.path}",
            sha256=file.sha256,
            bytes=file.bytes,
            suffix="",
            bearer=bearer,
        )
        for file in found.files
    ]


def local_copies(source: Source, cache_folder: Path) -> Iterator[tuple[str, Path]]:
    """Each file of a remote source, as it is called and where its whole, checked copy is; in the source's order.

    The next file is downloaded meanwhile, by a thread that ends with the process or with this iterator; what it has
    by then is kept to go on from. Raises UserError for a file that can't be had.
    """
    files = remote_files(source, cache_folder)
    stop = threading.Event()
    done: Queue[Path | Exception] = Queue()
    room = threading.Semaphore(2)  # files downloaded, or on their way, and not yet read

    def download() -> None:
        for file in files:
            room.acquire()
            if stop.is_set():
                return
            try:
                done.put(_fetched(file, cache_folder, stop))
            except Exception as error:  # raised again where the file is wanted
                done.put(error)
                return

    threading.Thread(target=download, daemon=True, name="downloads").start()
    try:
        for file in files:
            result = done.get()
            if isinstance(result, Exception):
                raise result
            yield file.shown, result
            room.release()
    finally:
        stop.set()
        room.release()


def provenance(source: Source, cache_folder: Path) -> dict[str, Any]:
    """What a manifest records of a remote source that was read: each file's name, size and SHA-256; else nothing."""
    if not is_remote(source):
        return {}
    found = []
    for file in remote_files(source, cache_folder):
        copy = _fetched(file, cache_folder, threading.Event())
        note = read_json(copy.with_name(f"{copy.name}.json"), "a note of a download")
        found.append({"path": file.shown, "bytes": note["bytes"], "sha256": note["sha256"]})
    commit = {"commit": hub.listing(source, cache_folder, PATIENCE).commit} if source.hub is not None else {}
    return {**commit, "files": found}


def known_sizes(source: Source, cache_folder: Path) -> list[tuple[str, int]]:
    """Name and size of each file of a remote source that is here or whose size is known; no server is asked."""
    if not is_remote(source) or (source.hub is not None and not hub.is_listed(source, cache_folder)):
        return []
    files = remote_files(source, cache_folder)
    copies = [local_path(file.url, cache_folder / "files", file.suffix) for file in files]
    sizes = [copy.stat().st_size if copy.exists() else file.bytes for file, copy in zip(files, copies, strict=True)]
    return [(copy.name, size) for copy, size in zip(copies, sizes, strict=True) if size is not None]


class _StoppedError(Exception):
    """Nobody waits for the file any more."""


def _fetched(file: RemoteFile, cache_folder: Path, stop: threading.Event) -> Path:
    """The file's whole copy, downloaded if need be, which a line on stderr says now and then."""
    told = -_TOLD_EVERY

    def progress(done: int, size: int | None) -> None:
        nonlocal told
        if stop.is_set():
            raise _StoppedError
        now = time.monotonic()
        if (size is None or size > _QUIET_BYTES) and now - told > _TOLD_EVERY:
            told = now
            of = f" of {readable_size(size)}" if size else ""
            print(f"downloading {file.shown}: {readable_size(done)}{of}", file=sys.stderr, flush=True)

    def sleep(seconds: float) -> None:
        if stop.wait(seconds):
            raise _StoppedError

    return fetch(
        file.url,
        cache_folder / "files",
        sha256=file.sha256,
        size=file.bytes,
        suffix=file.suffix,
        bearer=file.bearer,
        patience=PATIENCE,
        progress=progress,
        sleep=sleep,
    )
