"""Local copies of files that lie elsewhere: one ahead, in order, stopped with what reads them."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import data.remote as module
from config.errors import UserError
from data.config import Source
from data.downloads import Patience
from data.remote import RemoteFile, known_sizes, local_copies
from data.sources import read_source
from tests.http_server import Fault, File, Server, serving


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        running.files |= {f"/{n}.txt": File(f"text {n}".encode()) for n in range(5)}
        yield running


@pytest.fixture
def source(server: Server, monkeypatch: pytest.MonkeyPatch) -> Source:
    """One whose files are the server's five."""
    files = [RemoteFile(server.url(f"/{n}.txt"), f"{n}.txt", None, None, "") for n in range(5)]
    monkeypatch.setattr(module, "remote_files", lambda source, folder: files)
    monkeypatch.setattr(module, "PATIENCE", Patience(timeout=30.0, attempts=2, first_wait=0.0))
    return Source(url=server.url("/0.txt"))


def test_all_in_order(source: Source, tmp_path: Path) -> None:
    found = [(name, path.read_text()) for name, path in local_copies(source, tmp_path)]
    assert found == [(f"{n}.txt", f"text {n}") for n in range(5)]


def test_one_file_ahead_and_no_more(source: Source, server: Server, tmp_path: Path) -> None:
    copies = local_copies(source, tmp_path)
    next(copies), next(copies)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "downloads"]
    copies.close()
    thread.join(timeout=20)
    assert not thread.is_alive()
    assert len(server.requests) <= 3


def test_a_file_that_fails_comes_in_its_turn(source: Source, server: Server, tmp_path: Path) -> None:
    del server.files["/2.txt"]
    copies = local_copies(source, tmp_path)
    assert [next(copies)[0], next(copies)[0]] == ["0.txt", "1.txt"]
    with pytest.raises(UserError, match="404"):
        next(copies)


def test_a_reader_that_stops_ends_the_waits(source: Source, server: Server, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "PATIENCE", Patience(timeout=30.0, attempts=9, first_wait=600.0, longest_wait=600.0))
    copies = local_copies(source, tmp_path)
    next(copies)
    server.lasting = Fault(status=503)
    copies.close()
    for thread in threading.enumerate():
        if thread.name == "downloads":
            thread.join(timeout=20)
            assert not thread.is_alive()


def test_documents_bear_the_name_without_secrets(server: Server, tmp_path: Path) -> None:
    url = server.url("/3.txt?token=secret").replace("http://", "http://me:word@")
    (document,) = read_source(Source(url=url), "pretrain", 0, tmp_path, Counter())
    assert document.content == "text 3"
    assert document.source == server.url("/3.txt")
    assert server.requests[0][0] == "/3.txt?token=secret"
    assert server.requests[0][1]["Authorization"].startswith("Basic ")


def test_sizes_that_are_known_without_asking(server: Server, tmp_path: Path) -> None:
    url = server.url("/3.txt")
    assert known_sizes(Source(url=url), tmp_path) == []
    assert [size for _, size in known_sizes(Source(url=url, bytes=6), tmp_path)] == [6]
    assert known_sizes(Source(hub="o/set"), tmp_path) == known_sizes(Source(path="x"), tmp_path) == []
    assert not server.requests
    list(local_copies(Source(url=url), tmp_path))
    assert [(name[-5:], size) for name, size in known_sizes(Source(url=url), tmp_path)] == [("3.txt", 6)]
