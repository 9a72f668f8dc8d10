"""Downloads from servers that fail, stall, cut off, lie about length, or change the file in between."""

import hashlib
import itertools
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import data.downloads as module
from config.errors import UserError
from data.downloads import Patience
from tests.downloading import BODY, CUT, PATIENCE, Getter, assert_whole
from tests.http_server import Fault, File, Server, serving

SHA256 = hashlib.sha256(BODY).hexdigest()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        running.files["/text.jsonl"] = File(BODY)
        yield running


@pytest.fixture
def get(server: Server, tmp_path: Path) -> Getter:
    return Getter(server, tmp_path / "cache")


# Servers that fail for a while, or for good.


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504])
def test_a_server_that_recovers(get: Getter, server: Server, status: int) -> None:
    server.faults = [Fault(status=status, body=b"not now")] * 2
    get()
    assert_whole(get)
    assert 0.5 <= get.waits[0] <= 1.0 <= get.waits[1] <= 2.0


def test_a_server_that_does_not(get: Getter, server: Server) -> None:
    server.lasting = Fault(status=503, body=b"not now")
    get.fails("503 Service Unavailable", "gave up after 5 attempts", patience=Patience(attempts=5, longest_wait=3.0))
    assert len(server.requests) == 5
    for wait, longest in zip(get.waits, [1.0, 2.0, 3.0, 3.0], strict=True):
        assert longest / 2 <= wait <= longest


@pytest.mark.parametrize("status", [204, 400, 401, 403, 404, 410])
def test_final_answers(get: Getter, server: Server, status: int) -> None:
    server.lasting = Fault(status=status, body=b"")
    get.fails(str(status), "expected the file")
    assert len(server.requests) == 1


@pytest.mark.parametrize("location", ["file:///etc/passwd", "ftp://127.0.0.1/x?secret", "/text.jsonl"])
def test_redirects_to_nowhere(get: Getter, server: Server, location: str) -> None:
    server.lasting = Fault(status=302, headers={"Location": location})
    assert "secret" not in get.fails("302 Found")


def test_retry_after(get: Getter, server: Server) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    asked = ["7", date, "99999", "-5", "soon"]
    server.faults = [Fault(status=503, headers={"Retry-After": value}) for value in asked]
    get(patience=Patience(attempts=6, first_wait=0.0, longest_asked_wait=5000.0))
    assert get.waits[0] == 7
    assert 3000 < get.waits[1] <= 3600
    assert get.waits[2:] == [5000, 0, 0]


def test_nobody_listens(get: Getter, server: Server) -> None:
    with serving() as gone:
        get.url = gone.url("/text.jsonl")
    get.fails("Connection refused", "gave up after 3 attempts")


def test_not_http(get: Getter, server: Server) -> None:
    server.lasting = Fault(headers={"Content-Length": None}, silent=True)
    get.fails("the connection failed")


# Bodies that are cut off, stall, or have another length than announced.

CUTS = {"cut": Fault(cut=CUT), "stalled": Fault(cut=CUT, stall=True), "reset": Fault(cut=CUT, reset=True)}


@pytest.mark.parametrize("fault", CUTS.values(), ids=CUTS)
def test_goes_on_where_it_was_cut_off(get: Getter, server: Server, fault: Fault) -> None:
    server.faults = [fault]
    get(patience=Patience(timeout=1.0) if fault.stall else PATIENCE)
    assert_whole(get)
    first, second = get.ranges
    assert first is None
    assert second == f"bytes={CUT}-" or fault.reset  # a reset may take the last bytes with it
    assert second is None or server.requests[1][1]["If-Range"] == server.files["/text.jsonl"].tag
    assert len(get.waits) == 1


@pytest.mark.parametrize("fault", CUTS.values(), ids=CUTS)
@pytest.mark.parametrize("file", [File(BODY, ranges=False), File(BODY, etag=""), File(BODY, etag='W/"weak"')])
def test_begins_again_where_it_cannot_go_on(get: Getter, server: Server, fault: Fault, file: File) -> None:
    server.files["/text.jsonl"] = file
    server.faults = [fault]
    get(patience=Patience(timeout=0.3) if fault.stall else PATIENCE)
    assert_whole(get)
    assert file.etag is None or set(get.ranges) == {None}


def test_how_a_connection_ends_that_sent_the_whole_does_not_matter(get: Getter, server: Server) -> None:
    server.faults = [Fault(stall=True)]
    get(patience=Patience(timeout=1.0))
    assert_whole(get)
    assert get.ranges == [None]
    assert get.waits == []


def test_a_server_that_always_cuts(get: Getter, server: Server) -> None:
    server.files["/text.jsonl"] = File(BODY, ranges=False)
    server.lasting = Fault(cut=CUT)
    get.fails(f"after {CUT:,} of {len(BODY):,} bytes", f"{CUT:,} bytes are kept")
    server.lasting, server.files["/text.jsonl"] = Fault(), File(BODY)
    get()
    assert_whole(get)
    assert get.ranges[-1] == f"bytes={CUT}-"


def test_a_server_that_always_stalls(get: Getter, server: Server) -> None:
    server.lasting = Fault(cut=0, stall=True)
    get.fails("nothing came from the server for 0.3 s", patience=Patience(timeout=0.3, attempts=2))


def test_a_server_that_drips(get: Getter, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.lasting = Fault(cut=100, stall=True)
    clock = itertools.count(0, 1000)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    get.fails("only 100 bytes came in 1000 s", patience=Patience(timeout=600.0, attempts=1))


def test_attempts_that_get_on_are_not_counted(get: Getter, server: Server) -> None:
    body = os.urandom(10 * module._HEADWAY)
    server.files["/text.jsonl"] = File(body)
    server.faults = [Fault(cut=2 * module._HEADWAY)] * 4
    get(patience=Patience(attempts=2))
    assert_whole(get, body)
    assert max(get.waits) <= 1.0
    server.files["/other"] = File(body, ranges=False)
    server.faults = [Fault(cut=2 * module._HEADWAY)] * 4  # the same bytes each time
    get.url = server.url("/other")
    get.fails("gave up after 2 attempts", patience=Patience(attempts=2))


def test_announces_too_much(get: Getter, server: Server) -> None:
    server.lasting = Fault(headers={"Content-Length": str(len(BODY) + 5)})
    server.files["/text.jsonl"] = File(BODY, ranges=False)
    get.fails(f"after {len(BODY):,} of {len(BODY) + 5:,} bytes")


def test_announces_too_little(get: Getter, server: Server) -> None:
    server.lasting = Fault(headers={"Content-Length": str(CUT)})
    get.fails(f"more than the {CUT:,} bytes")
    assert not get.part.exists()
    server.lasting, server.faults = Fault(), [Fault(headers={"Content-Length": str(CUT)})]
    get()
    assert_whole(get)


@pytest.mark.parametrize("announced", [CUT, len(BODY) + 5])
def test_announces_another_size_than_the_profile(get: Getter, server: Server, announced: int) -> None:
    server.lasting = Fault(headers={"Content-Length": str(announced)})
    get.fails(f"size is {announced:,} bytes, expected {len(BODY):,}", size=len(BODY))
    assert len(server.requests) == 1


@pytest.mark.parametrize("length", [None, "many", "-1"])
def test_no_length(get: Getter, server: Server, length: str | None) -> None:
    server.lasting = Fault(headers={"Content-Length": length})
    get.fails("doesn't say how long")
    get(size=len(BODY))
    assert_whole(get)
    get.path.unlink()
    get(sha256=SHA256)
    assert_whole(get)


@pytest.mark.parametrize("off", [-1, 1])
def test_no_length_and_another_size_than_the_profile(get: Getter, server: Server, off: int) -> None:
    server.lasting = Fault(headers={"Content-Length": None})
    server.files["/text.jsonl"] = File(BODY, ranges=False)
    get.fails(f"{len(BODY) - off:,} bytes", size=len(BODY) - off)


# The rest of a file that is not the rest of what is there.


@pytest.mark.parametrize("if_range", [True, False])
@pytest.mark.parametrize("body", [BODY[::-1], BODY[:-1], BODY[:CUT], BODY[:5], BODY + b"more"])
def test_a_file_that_changes_between_two_attempts(get: Getter, server: Server, body: bytes, if_range: bool) -> None:
    server.faults = [Fault(cut=CUT)]

    def change(_: float) -> None:
        server.files["/text.jsonl"] = File(body, if_range=if_range)

    get(sleep=change)
    assert_whole(get, body)


@pytest.mark.parametrize(
    "place",
    [
        None,
        "bytes 0-25599/25600",
        f"bytes {CUT - 1}-25598/25600",
        f"bytes {CUT}-25599/99999",
        f"bytes {CUT}-25598/25600",
        f"bytes {CUT}-25599/*",
        "x",
    ],
)
def test_a_partial_answer_that_lies(get: Getter, server: Server, place: str | None) -> None:
    server.faults = [Fault(cut=CUT), Fault(headers={"Content-Range": place})]
    get()
    assert_whole(get)
    assert get.ranges == [None, f"bytes={CUT}-", None]


def test_a_partial_answer_that_nobody_asked_for(get: Getter, server: Server) -> None:
    server.faults = [Fault(status=206, headers={"Content-Range": "bytes 0-25599/25600"})]
    get()
    assert_whole(get)


def test_a_partial_answer_shorter_than_asked(get: Getter, server: Server) -> None:
    middle = {"Content-Range": f"bytes {CUT}-{CUT + 99}/{len(BODY)}", "Content-Length": "100"}
    server.faults = [Fault(cut=CUT), Fault(headers=middle, cut=100)]
    get()
    assert_whole(get)
    assert get.ranges == [None, f"bytes={CUT}-", f"bytes={CUT + 100}-"]


# Any of it, one after another.

BYTES = st.integers(0, len(BODY))
FAULTS = st.one_of(
    st.builds(Fault, status=st.sampled_from([206, 416, 429, 500, 503])),
    st.builds(Fault, cut=BYTES, reset=st.booleans()),
    st.builds(lambda start: Fault(headers={"Content-Range": f"bytes {start}-25599/25600"}), BYTES),
    st.just(Fault(silent=True)),
)
WORSE = st.one_of(  # a short file with a length to match can be told by its checksum alone
    FAULTS,
    st.builds(lambda length, cut: Fault(headers={"Content-Length": str(length)}, cut=cut), BYTES, BYTES),
    st.builds(lambda body, cut: Fault(body=body, cut=cut), st.binary(), BYTES),
)


@settings(max_examples=60)
@given(st.lists(FAULTS, max_size=8), st.lists(WORSE, max_size=8), st.booleans(), st.booleans())
def test_the_right_file_or_one_clear_error(faults: list[Fault], worse: list[Fault], ranges: bool, pinned: bool) -> None:
    with serving() as server, TemporaryDirectory() as folder:
        server.files["/text.jsonl"] = File(BODY, ranges=ranges)
        server.faults = worse if pinned else faults
        get = Getter(server, Path(folder))
        try:
            get(sha256=SHA256 if pinned else None)
        except UserError as error:
            assert "\n" not in str(error)
            assert not get.path.exists()
            server.faults = []
            get(sha256=SHA256)
        assert_whole(get)
