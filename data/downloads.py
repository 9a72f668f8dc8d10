"""Files behind http(s) URLs, kept in a local folder: whole and checked under their names, or not there.

Content is written to `<name>.part` and gets its name when its length and its checksum are right. A transfer that was
cut off, by the network or by a kill, goes on where it ended, if the server can say that the file is still the same.
`<name>.json` beside the file says where it comes from and what it has to be; `<name>.lock` keeps processes apart.
"""

import fcntl
import gzip
import http
import http.client
import random
import re
import shutil
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from errno import ENOSPC
from os import fsync
from pathlib import Path
from typing import Any

from config.errors import UserError
from config.files import raise_if_disk_full, read_json, sha256_of, write_json
from data.http import FailedError, open_url, read_some
from data.urls import file_name, shown_url

Progress = Callable[[int, int | None], None]  # bytes so far and in all; None where the server doesn't say

_CHUNK = 1 << 20  # bytes of one read at most
_HEADWAY = 1 << 20  # new bytes that make a failed attempt worth another one, however many there were
_SLOWEST = 1000  # bytes a second; less than that over a whole time-out is as good as a stall
_GZIP = ("gzip", "x-gzip")


@dataclass(frozen=True)
class Patience:
    """How long to put up with a server. All in seconds but `attempts`, which are those in a row without headway."""

    timeout: float = 30.0  # to connect, and for each read
    attempts: int = 6
    first_wait: float = 1.0  # doubles with each attempt, less up to half of it by chance
    longest_wait: float = 60.0
    longest_asked_wait: float = 300.0  # that a Retry-After header can ask for


@dataclass(frozen=True)
class _Job:
    """One file to get: its URL, whole and as shown, its place, what it has to be, seconds to wait for the network."""

    url: str
    shown: str
    path: Path
    sha256: str | None
    size: int | None
    bearer: str | None
    timeout: float

    def beside(self, suffix: str) -> Path:
        return self.path.with_name(self.path.name + suffix)

    @property
    def part(self) -> Path:
        return self.beside(".part")

    @property
    def part_note(self) -> Path:
        return self.beside(".part.json")

    @property
    def note(self) -> Path:
        return self.beside(".json")

    def discard_part(self) -> None:
        self.part.unlink(missing_ok=True)
        self.part_note.unlink(missing_ok=True)


@dataclass(frozen=True)
class _Sent:
    """What a server says of the body that it sends; `bytes` counts the whole body, as encoded."""

    etag: str | None
    bytes: int | None
    encoding: str


def fetch(
    url: str,
    folder: Path,
    *,
    sha256: str | None = None,
    size: int | None = None,
    suffix: str = "",
    bearer: str | None = None,
    verify: bool = False,
    patience: Patience | None = None,
    progress: Progress | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Path:
    """The local file with what `url` holds, downloaded unless a whole one is there already.

    `sha256` (hex) and `size` (bytes) are what the file has to be; without them the server's own word on the length
    counts. A file that is there is trusted by its size and modification time, or with `verify` by its hash; the server
    isn't asked again. Processes that want the same file wait for the first one. The file's name ends in `suffix`,
    whether the URL's does or not; `bearer` is a token for the URL's own host.

    Raises UserError when the file can't be had or isn't what was expected, and when the disk is full. What a message
    shows of the URL has no password and no query, which may hold a token.
    """
    patience = patience or Patience()
    job = _Job(
        url=url,
        shown=shown_url(url),
        path=local_path(url, folder, suffix),
        sha256=sha256.lower() if sha256 else None,
        size=size,
        bearer=bearer,
        timeout=patience.timeout,
    )
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(job.beside(".lock")):
        if not _is_whole(job, verify):
            _download(job, patience, progress, sleep)
    return job.path


def local_path(url: str, folder: Path, suffix: str = "") -> Path:
    """Where `fetch` puts a URL's file."""
    name = file_name(url)
    return folder / (name if name.lower().endswith(suffix) else name + suffix)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process; waits for the one that has it."""
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _note(path: Path) -> dict[str, Any] | None:
    """A note beside a file; None when there is none to read, which only costs the download."""
    try:
        note = read_json(path, "a note of a download")
    except UserError:
        return None
    return note if isinstance(note, dict) else None


def _is_whole(job: _Job, verify: bool) -> bool:
    """Whether the file is there, is what its note says, and that is what is wanted."""
    note = _note(job.note)
    if note is None or not job.path.exists():
        return False
    if job.sha256 not in (None, note.get("sha256")) or job.size not in (None, note.get("bytes")):
        return False
    status = job.path.stat()
    if not verify and (status.st_size, status.st_mtime_ns) == (note.get("bytes"), note.get("mtime_ns")):
        return True
    if sha256_of(job.path) != note.get("sha256"):
        return False
    write_json(job.note, note | {"mtime_ns": status.st_mtime_ns})
    return True


def _download(job: _Job, patience: Patience, progress: Progress | None, sleep: Callable[[float], None]) -> None:
    failures = furthest = 0
    while True:
        try:
            _attempt(job, progress)
            return
        except FailedError as failure:
            reached = job.part.stat().st_size if job.part.exists() else 0
            if reached >= furthest + _HEADWAY:
                failures = 0
            furthest = max(furthest, reached)
            failures += 1
            if failures >= patience.attempts:
                start, _ = _resumable(job)
                kept = f"; {start:,} bytes are kept to go on from" if start else ""
                raise UserError(
                    f"{job.shown}: {failure}; gave up after {failures} attempts{kept}; "
                    "see whether the server is well and run it again"
                ) from None
            backoff = min(patience.longest_wait, patience.first_wait * 2 ** (failures - 1))
            sleep(max(backoff * random.uniform(0.5, 1), min(failure.wait, patience.longest_asked_wait)))


def _attempt(job: _Job, progress: Progress | None) -> None:
    """Get what is missing of the file, check it and give it its name."""
    start, before = _resumable(job)
    if before is not None and start == before.bytes:  # a kill came between the last byte and the name
        _finish(job, before, resumed=True)
        return
    headers = {"Range": f"bytes={start}-", "If-Range": before.etag} if before is not None else {}
    with _answer(job, headers) as response:
        if response.status == http.HTTPStatus.PARTIAL_CONTENT:
            sent = _continued(job, response, start, before)
        else:
            start, sent = 0, _begun(job, response)
        _check_announced(job, response, sent)
        done = _receive(job, response, sent, start, progress)
    if sent.bytes is not None and done < sent.bytes:
        raise FailedError(f"the connection ended after {done:,} of {sent.bytes:,} bytes")
    _finish(job, sent, resumed=start > 0)


def _resumable(job: _Job) -> tuple[int, _Sent | None]:
    """How many bytes of the file are there, and what they are of; None where that isn't known well enough to go on."""
    note = _note(job.part_note)
    if note is None or note.keys() != _Sent.__annotations__.keys() or not job.part.exists():
        return 0, None
    sent, start = _Sent(**note), job.part.stat().st_size
    # A weak ETag stands for content that means the same, whose bytes may differ: no ground to go on from.
    if start == sent.bytes or (start and sent.etag and not sent.etag.startswith("W/")):
        return start, sent
    return 0, None


def _answer(job: _Job, headers: dict[str, str]) -> http.client.HTTPResponse:
    try:
        return open_url(job.url, headers, job.timeout, job.bearer)
    except FailedError as failure:
        if failure.status == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            job.discard_part()
        raise


def _begun(job: _Job, response: http.client.HTTPResponse) -> _Sent:
    """What a whole answer (200) says of its body."""
    encoding = response.headers.get("Content-Encoding", "").strip().lower().replace("identity", "")
    if encoding not in ("", *_GZIP):
        raise UserError(
            f"{job.shown}: the server sends it encoded as {encoding!r}, expected it plain or as gzip; "
            "download it by other means and name it as a `path`"
        )
    length = response.length if response.length is not None or encoding else job.size
    return _Sent(response.headers.get("ETag"), length, encoding)


def _continued(job: _Job, response: http.client.HTTPResponse, start: int, before: _Sent | None) -> _Sent:
    """What a partial answer (206) says, if it is the rest of the part that is there; otherwise begin again."""
    found = response.headers.get("Content-Range", "")
    match = re.fullmatch(r"bytes (\d+)-(\d+)/(\d+)", found.strip())
    if before is not None and match:
        first, last, total = map(int, match.groups())
        same = response.headers.get("ETag") == before.etag and before.bytes in (None, total)
        if same and first == start and last < total and response.length in (None, last + 1 - first):
            return _Sent(before.etag, total, before.encoding)
    job.discard_part()
    raise FailedError(f"the server sends another part of the file ({found!r}) than the one from byte {start:,} on")


def _check_announced(job: _Job, response: http.client.HTTPResponse, sent: _Sent) -> None:
    """Refuse, before a byte is read, what can't end well."""
    if response.headers.get("Transfer-Encoding", "chunked").strip().lower() != "chunked":
        raise UserError(f"{job.shown}: the server's Transfer-Encoding is unknown, expected none or chunked")
    if sent.bytes is None and not response.chunked and job.sha256 is None and job.size is None:
        raise UserError(
            f"{job.shown}: the server doesn't say how long the file is, so a cut one can't be told from a whole one; "
            "give its `bytes` or `sha256`"
        )
    if not sent.encoding and sent.bytes is not None and job.size not in (None, sent.bytes):
        raise _wrong(job, "size", f"{sent.bytes:,} bytes", f"{job.size:,}")


def _receive(job: _Job, response: http.client.HTTPResponse, sent: _Sent, start: int, progress: Progress | None) -> int:
    """Write the body to the part from byte `start` on, to the disk itself, and return the part's length."""
    done = start
    end = sent.bytes if response.length is None else start + response.length
    if response.length is not None and response.will_close:
        response.length += 1  # the connection ends with the body: a byte after it shows that its length is a lie
    try:
        if sent.bytes is not None and shutil.disk_usage(job.path.parent).free < sent.bytes - start:
            raise OSError(ENOSPC, "less room than the file needs")
        with job.part.open("ab" if start else "wb") as file:
            if not start:
                write_json(job.part_note, asdict(sent))
            since, before = time.monotonic(), done
            while chunk := _next(job, response, whole=done == end):
                file.write(chunk)
                done += len(chunk)
                if end is not None and done > end:
                    job.discard_part()
                    raise FailedError(f"the server sends more than the {end:,} bytes expected")
                if progress is not None:
                    progress(done, sent.bytes)
                if (now := time.monotonic()) - since >= job.timeout:
                    if done - before < _SLOWEST * (now - since) and done != end:
                        raise FailedError(f"only {done - before:,} bytes came in {now - since:.0f} s")
                    since, before = now, done
            file.flush()
            fsync(file.fileno())
    except OSError as error:
        raise_if_disk_full(error, job.path.parent, max(sent.bytes or 0, done) - done)
        raise
    return done


def _next(job: _Job, response: http.client.HTTPResponse, whole: bool) -> bytes:
    """What has come of the body; nothing at its end. When it is `whole`, how the connection ends doesn't matter."""
    try:
        return read_some(job.url, response, job.timeout)
    except FailedError:
        if whole:
            return b""
        raise


def _finish(job: _Job, sent: _Sent, resumed: bool) -> None:
    """Check the part, which has all its bytes, and give it its name. A wrong one is deleted and a UserError, or a
    FailedError if it was put together from several answers."""
    packed = sent.encoding and not job.path.name.lower().endswith((".gz", ".tgz"))
    whole = _unpacked(job) if packed else job.part
    size, digest = whole.stat().st_size, sha256_of(whole)
    if job.size in (None, size) and job.sha256 in (None, digest):
        # The note comes first: a file without one doesn't count, one with another's is hashed and found wrong.
        note = {"url": job.shown, "bytes": size, "sha256": digest, "etag": sent.etag}
        write_json(job.note, note | {"mtime_ns": whole.stat().st_mtime_ns})
        whole.replace(job.path)
        job.discard_part()
        return
    whole.unlink()
    job.discard_part()
    if resumed:
        raise FailedError("the file, put together from several answers, is not the one expected")
    if job.size not in (None, size):
        raise _wrong(job, "size", f"{size:,} bytes", f"{job.size:,}")
    raise _wrong(job, "sha256", digest, str(job.sha256))


def _wrong(job: _Job, what: str, found: str, expected: str) -> UserError:
    return UserError(
        f"{job.shown}: the file's {what} is {found}, expected {expected}; "
        "correct the profile if the file was changed on purpose, otherwise get it from elsewhere"
    )


def _unpacked(job: _Job) -> Path:
    """The part without the gzip encoding that the server put around the file, in a file of its own."""
    unpacked = job.beside(".unpacked")
    try:
        with gzip.open(job.part) as source, unpacked.open("wb") as file:
            shutil.copyfileobj(source, file, _CHUNK)
            file.flush()
            fsync(file.fileno())
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        unpacked.unlink(missing_ok=True)
        job.discard_part()
        raise FailedError(f"the server's gzip encoding is damaged ({type(error).__name__})") from None
    except OSError as error:
        unpacked.unlink(missing_ok=True)
        raise_if_disk_full(error, job.path.parent, job.part.stat().st_size)
        raise
    return unpacked
