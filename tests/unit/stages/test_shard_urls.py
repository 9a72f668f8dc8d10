"""Stage shard on a profile whose text lies behind a URL, on a server that does all sorts of things wrong.

The shards are those of the same text in a local file, or there is one clear error and no file that counts.
"""

import gzip
import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import data.remote as remote
from config.errors import UserError
from config.paths import ROOT
from data.downloads import Patience
from data.manifest import read_manifest, verify
from stages import resolve, shard, tokenize
from tests.http_server import Fault, File, Server, serving
from tests.little_repository import run_stages, write_profile

TEXTS = [f"text {n}: the cat sat on the mat {'and ran ' * (n % 9)}" for n in range(600)]
LINES = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS)
BODY = gzip.compress(LINES.encode(), mtime=0)
SHA256 = hashlib.sha256(BODY).hexdigest()
PATH = "/corpus/texts.jsonl.gz"


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "PATIENCE", Patience(timeout=0.5, attempts=3, first_wait=0.0))


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> Path:
    """A repository as after shard, from a local file; what is asked of the others."""
    root = tmp_path_factory.mktemp("local")
    (root / "texts.jsonl").write_text(LINES)
    _write(root, {"path": str(root / "texts.jsonl")})
    run_stages(root, resolve, tokenize, shard)
    return root


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as running:
        running.files[PATH] = File(BODY)
        yield running


@pytest.fixture
def root(expected: Path, tmp_path: Path) -> Path:
    """A repository with a tokenizer and nothing downloaded yet."""
    shutil.copytree(expected, tmp_path / "clone")
    shutil.rmtree(tmp_path / "clone" / "runs" / "little" / "shards")
    return tmp_path / "clone"


def _write(root: Path, source: dict) -> None:
    write_profile(root, pretrain=[source])


def _sharded(root: Path, source: dict) -> dict:
    """The manifest of a run of shard with `source`, its files verified."""
    _write(root, source)
    run_stages(root, resolve, shard)
    manifest = read_manifest(root / "runs" / "little" / "shards" / "pretrain.json")
    verify(manifest)
    return manifest


def _is_right(root: Path, manifest: dict, expected: Path) -> None:
    wanted = json.loads((expected / "runs" / "little" / "shards" / "pretrain.json").read_text())
    assert manifest["splits"] == wanted["splits"]
    (file,) = [path for path in (root / "cache" / "files").iterdir() if path.suffix not in (".json", ".lock")]
    assert file.read_bytes() == BODY


def _fails(root: Path, source: dict, *parts: str) -> None:
    with pytest.raises(UserError) as caught:
        _sharded(root, source)
    message = str(caught.value)
    assert all(part in message for part in parts), message
    assert "\n" not in message
    counted = [path.name for path in (root / "cache" / "files").iterdir() if path.name.endswith(".gz")]
    assert counted == [], "no half-written file counts"
    assert not (root / "runs" / "little" / "shards").exists()


def test_the_shards_are_those_of_a_local_file(root: Path, expected: Path, server: Server) -> None:
    manifest = _sharded(root, {"url": server.url(PATH), "sha256": SHA256, "bytes": len(BODY)})
    _is_right(root, manifest, expected)
    (source,) = manifest["sources"]
    assert source["source"] == server.url(PATH)
    assert source["files"] == [{"path": server.url(PATH), "bytes": len(BODY), "sha256": SHA256}]
    assert len(server.requests) == 1
    server.lasting = Fault(status=503)
    assert _sharded(root, {"url": server.url(PATH), "sha256": SHA256})["splits"] == manifest["splits"]
    assert len(server.requests) == 1, "what is whole is not asked for again"


PASSING = {
    "503 twice": [Fault(status=503, body=b"busy")] * 2,
    "truncated": [Fault(cut=1500)],
    "truncated twice": [Fault(cut=700), Fault(cut=300)],
    "stalled": [Fault(cut=1500, stall=True)],
    "reset": [Fault(cut=1500, reset=True)],
    "hangs up": [Fault(silent=True)],
    "says less than it sends": [Fault(headers={"Content-Length": str(len(BODY) - 9)})],
    "says more than it sends": [Fault(headers={"Content-Length": str(len(BODY) + 9)})],
}


@pytest.mark.parametrize("faults", PASSING.values(), ids=PASSING)
def test_a_server_that_recovers(root: Path, expected: Path, server: Server, faults: list[Fault]) -> None:
    server.faults = list(faults)
    _is_right(root, _sharded(root, {"url": server.url(PATH)}), expected)
    assert not server.faults


LASTING = {
    "503": (Fault(status=503, body=b"busy"), "503 Service Unavailable"),
    "404": (Fault(status=404, body=b"gone"), "404 Not Found"),
    "truncated": (Fault(cut=0), "ended after 0 of"),
    "stalled": (Fault(cut=1500, stall=True, headers={"ETag": None}), "nothing came from the server for 0.5 s"),
    "says less than it sends": (Fault(headers={"Content-Length": str(len(BODY) - 9)}), "more than the"),
    "says more than it sends": (Fault(headers={"Content-Length": str(len(BODY) + 9)}), "connection ended after"),
    "says nothing of its length": (Fault(headers={"Content-Length": None}), "doesn't say how long"),
}


@pytest.mark.parametrize(("fault", "part"), LASTING.values(), ids=LASTING)
def test_a_server_that_does_not(root: Path, server: Server, fault: Fault, part: str) -> None:
    server.lasting = fault
    _fails(root, {"url": server.url(PATH)}, server.url(PATH), part)


def test_a_wrong_checksum_and_a_wrong_size(root: Path, server: Server) -> None:
    server.files[PATH] = File(BODY[:-1] + b"!")
    _fails(root, {"url": server.url(PATH), "sha256": SHA256}, "the file's sha256 is", SHA256)
    _fails(root, {"url": server.url(PATH), "bytes": 7}, "the file's size is", "expected 7")


def test_a_whole_file_of_nonsense_is_named_with_its_url(root: Path, server: Server) -> None:
    server.files["/page.jsonl"] = File(b"<html>Sign in</html>")
    _write(root, {"url": server.url("/page.jsonl?token=secret")})
    with pytest.raises(UserError, match=r"/page\.jsonl: .*line 1 is not JSON.*<html>.*delete ") as caught:
        run_stages(root, resolve, shard)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("kind", ["txt", "md", "jsonl", "jsonl.gz", "parquet"])
@pytest.mark.parametrize("named", [True, False])
def test_every_kind_of_file(root: Path, server: Server, kind: str, named: bool) -> None:
    table = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": TEXTS}), table)
    text = "\n".join(TEXTS).encode()
    bodies = {"txt": text, "md": text, "jsonl": LINES.encode(), "jsonl.gz": BODY, "parquet": bytes(table.getvalue())}
    path = f"/texts.{kind}" if named else "/download"
    server.files[path] = File(bodies[kind])
    source = {"url": server.url(path)} | ({} if named else {"format": kind})
    (figures,) = _sharded(root, source)["sources"]
    assert figures["text_bytes"] == sum(map(len, TEXTS)) + (len(TEXTS) - 1 if kind in ("txt", "md") else 0)


def test_as_a_command_it_is_one_line_and_status_1(root: Path, server: Server) -> None:
    server.lasting = Fault(status=404, body=b"gone")
    _write(root, {"url": server.url(PATH)})
    run_stages(root, resolve)
    done = subprocess.run(
        [sys.executable, "-m", "stages.shard", "little"],
        cwd=root, env={"PYTHONPATH": str(ROOT), "no_proxy": "127.0.0.1", "PATH": "/usr/bin:/bin"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {server.url(PATH)}: the server answers 404") and done.stderr.count("\n") == 1


def test_the_list_of_sources_asks_no_server(root: Path, server: Server) -> None:
    _write(root, {"url": server.url(PATH) + "?token=secret", "sha256": SHA256})
    run_stages(root, resolve)
    listed = json.loads((root / "runs" / "little" / "sources.json").read_text())["pretrain"]
    assert listed == [{"path": server.url(PATH), "bytes": None, "sha256": SHA256}]
    assert not server.requests
