"""What a download is and leaves behind: notes, encodings, checksums, kills, neighbours, full disks, secrets."""

import fcntl
import gzip
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import data.downloads as module
from config.errors import UserError
from config.paths import ROOT
from data.downloads import Patience
from tests.downloading import BODY, CUT, Getter, assert_whole
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


def test_a_file_and_its_note(get: Getter, server: Server) -> None:
    steps: list[tuple[int, int | None]] = []
    assert get(sha256=SHA256.upper(), size=len(BODY), progress=lambda *step: steps.append(step)) == get.path
    assert_whole(get)
    status = get.path.stat()
    assert get.note == {
        "url": get.url,
        "bytes": len(BODY),
        "sha256": SHA256,
        "etag": server.files["/text.jsonl"].tag,
        "mtime_ns": status.st_mtime_ns,
    }
    assert steps[-1] == (len(BODY), len(BODY))
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert get.waits == []


def test_an_empty_file(get: Getter, server: Server) -> None:
    server.files["/text.jsonl"] = File(b"")
    get()
    assert_whole(get, b"")


def test_the_second_call_asks_nobody(get: Getter, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    get()
    monkeypatch.setattr(module, "sha256_of", None)  # hashing would fail
    get(sha256=SHA256, size=len(BODY))
    assert len(server.requests) == 1


def test_a_file_changed_on_the_disk_is_downloaded_again(get: Getter, server: Server) -> None:
    get()
    get.path.write_bytes(BODY[:-1])
    get()
    assert_whole(get)
    assert len(server.requests) == 2


def test_a_touched_file_is_hashed_and_kept(get: Getter, server: Server) -> None:
    get()
    os.utime(get.path, ns=(1, 1))
    get()
    assert get.note["mtime_ns"] == 1
    assert len(server.requests) == 1


def test_hashing_on_demand_finds_what_time_and_size_hide(get: Getter, server: Server) -> None:
    get()
    status = get.path.stat()
    get.path.write_bytes(b"x" + BODY[1:])
    os.utime(get.path, ns=(status.st_atime_ns, status.st_mtime_ns))
    get()
    assert len(server.requests) == 1
    get(verify=True)
    assert_whole(get)
    assert len(server.requests) == 2


@pytest.mark.parametrize("note", ["", "[]", "{}", "{"])
def test_a_file_without_a_good_note_does_not_count(get: Getter, server: Server, note: str) -> None:
    get()
    get.path.write_bytes(b"half")
    get.path.with_name(get.path.name + ".json").write_text(note)
    get()
    assert_whole(get)
    assert len(server.requests) == 2


def test_another_hash_in_the_profile_gets_the_new_file(get: Getter, server: Server) -> None:
    get()
    server.files["/text.jsonl"] = File(b"new")
    get(sha256=hashlib.sha256(b"new").hexdigest())
    assert_whole(get, b"new")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects(get: Getter, server: Server, status: int) -> None:
    server.faults = [Fault(status=status, headers={"Location": server.url("/other?token=secret")})]
    server.files["/other"] = File(BODY)
    get()
    assert_whole(get)
    assert "secret" not in json.dumps(get.note)


def test_chunks(get: Getter, server: Server) -> None:
    chunked = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (BODY[:CUT], BODY[CUT:])) + b"0\r\n\r\n"
    headers = {"Content-Length": None, "Transfer-Encoding": "chunked"}
    server.faults = [Fault(headers=headers, body=chunked, cut=CUT), Fault(headers=headers, body=chunked)]
    server.files["/text.jsonl"] = File(BODY, ranges=False)
    get()
    assert_whole(get)
    assert len(get.waits) == 1


# The gzip encoding that a server may put around a file, though it was asked not to.


def test_gzip_encoding_is_taken_off(get: Getter, server: Server) -> None:
    packed = gzip.compress(BODY)
    server.lasting = Fault(headers={"Content-Encoding": "gzip"}, body=packed)
    server.faults = [Fault(headers={"Content-Encoding": "gzip"}, body=packed[:-9])]  # damaged, at its announced length
    get(sha256=SHA256, size=len(BODY))
    assert_whole(get)
    assert server.requests[0][1]["Accept-Encoding"] == "identity"


def test_gzip_encoding_around_a_file_of_another_size(get: Getter, server: Server) -> None:
    server.lasting = Fault(headers={"Content-Encoding": "gzip"}, body=gzip.compress(BODY))
    get.fails(f"size is {len(BODY):,} bytes, expected 5", size=5)
    assert not list(get.folder.glob("*.part*")) + list(get.folder.glob("*.unpacked"))


def test_a_gz_file_stays_one(get: Getter, server: Server) -> None:
    packed = gzip.compress(BODY)
    server.files["/text.jsonl.gz"] = File(packed)
    server.lasting = Fault(headers={"Content-Encoding": "gzip"})
    get.url = server.url("/text.jsonl.gz")
    get(size=len(packed))
    assert_whole(get, packed)


@pytest.mark.parametrize(("header", "part"), [("Content-Encoding", "'br'"), ("Transfer-Encoding", "is unknown")])
def test_unknown_encodings(get: Getter, server: Server, header: str, part: str) -> None:
    server.lasting = Fault(headers={header: "br"})
    get.fails(part)
    assert len(server.requests) == 1


# Checksums.


def test_a_wrong_checksum(get: Getter, server: Server) -> None:
    expected = "0" * 64
    get.fails(SHA256, expected, sha256=expected)
    assert len(server.requests) == 1
    assert not get.part.exists()


def test_a_wrong_checksum_of_parts_put_together_begins_again(get: Getter, server: Server) -> None:
    server.faults = [Fault(body=b"x" + BODY[1:], cut=CUT)]
    get(sha256=SHA256)
    assert_whole(get)
    assert get.ranges == [None, f"bytes={CUT}-", None]


def test_what_was_there_stays_when_the_new_one_fails(get: Getter, server: Server) -> None:
    get()
    with pytest.raises(UserError, match="sha256"):
        get(sha256="0" * 64)
    assert_whole(get)


# Kills, neighbours and full disks.

SCRIPT = """
import sys
from pathlib import Path
from data.downloads import fetch
print(fetch(sys.argv[1], Path(sys.argv[2]), progress=lambda done, total: print("got", done, flush=True)))
"""


def test_a_kill_leaves_a_part_that_the_next_call_goes_on_from(get: Getter, server: Server) -> None:
    server.faults = [Fault(cut=20_000, stall=True)]
    command = [sys.executable, "-c", SCRIPT, get.url, str(get.folder)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert any(line == "got 20000\n" for line in process.stdout)
        process.send_signal(signal.SIGKILL)
    assert not get.path.exists()
    kept = get.part.stat().st_size
    assert 0 < kept <= 20_000
    get()
    assert_whole(get)
    assert get.ranges == [None, f"bytes={kept}-"]


@pytest.mark.parametrize("etag", [None, ""])
@pytest.mark.parametrize("moment", ["unlink", "replace"])
def test_a_kill_at_the_last_moment(
    get: Getter, server: Server, monkeypatch: pytest.MonkeyPatch, moment: str, etag: str | None
) -> None:
    server.files["/text.jsonl"] = File(BODY, etag)
    real = getattr(Path, moment)

    def killed(path: Path, *rest, **settings) -> None:
        if path.name.endswith(".part"):
            raise KeyboardInterrupt
        return real(path, *rest, **settings)

    with monkeypatch.context() as patch:
        patch.setattr(Path, moment, killed)
        with pytest.raises(KeyboardInterrupt):
            get()
    get()
    assert get.path.read_bytes() == BODY
    assert len(server.requests) == 1


def test_two_at_once_download_once(get: Getter, server: Server) -> None:
    server.faults = [Fault(cut=CUT, stall=True)]
    begun = threading.Event()
    patience = Patience(timeout=60.0)
    found: list[Path] = []
    first = threading.Thread(
        target=lambda: found.append(get(patience=patience, progress=lambda *_: begun.set())), daemon=True
    )
    second = threading.Thread(target=lambda: found.append(get(patience=patience)), daemon=True)
    first.start()
    assert begun.wait(60)
    with get.path.with_name(get.path.name + ".lock").open("a") as lock, pytest.raises(BlockingIOError):
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    second.start()
    server.release.set()
    first.join(60)
    second.join(60)
    assert found == [get.path, get.path]
    assert_whole(get)
    assert get.ranges == [None, f"bytes={CUT}-"]  # the second request is the first one's, for its rest


def test_too_little_room_is_seen_before_the_first_byte(
    get: Getter, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = module.shutil.disk_usage(".")
    with monkeypatch.context() as patch:
        patch.setattr(module.shutil, "disk_usage", lambda _: usage._replace(free=len(BODY) - 1))
        get.fails("disk", "full")
    assert not get.part.exists()
    assert len(server.requests) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("body", [BODY, b"fits a buffer"])
def test_a_disk_that_fills_up(get: Getter, server: Server, body: bytes) -> None:
    server.files["/text.jsonl"] = File(body)
    get.folder.mkdir()
    get.part.symlink_to("/dev/full")
    get.fails("disk", "full")
    get.part.unlink()
    get()
    assert_whole(get, body)


# Secrets.

SECRETS = ("us%40er", "us@er", "pa%3Ass", "pa:ss", "hidden")


def test_the_password_is_sent_and_never_shown(get: Getter, server: Server) -> None:
    host = server.url("").removeprefix("http://")
    get.url = f"http://us%40er:pa%3Ass@{host}/text.jsonl?token=hidden"
    server.lasting = Fault(status=401)
    message = get.fails("401 Unauthorized", "/text.jsonl?…")
    assert not any(secret in message for secret in SECRETS)
    path, headers = server.requests[0]
    assert path == "/text.jsonl?token=hidden"
    assert headers["Authorization"] == "Basic dXNAZXI6cGE6c3M="
    server.lasting = Fault()
    get()
    kept = json.dumps(get.note) + " ".join(file.name for file in get.folder.iterdir())
    assert not any(secret in kept for secret in SECRETS)


def test_the_password_does_not_follow_a_redirect(get: Getter, server: Server) -> None:
    get.url = get.url.replace("http://", "http://user:secret@")
    server.faults = [Fault(status=302, headers={"Location": server.url("/text.jsonl?other")})]
    get()
    assert [headers["Authorization"] is None for _, headers in server.requests] == [False, True]
