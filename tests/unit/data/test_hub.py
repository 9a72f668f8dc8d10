"""Data sets of a hub: a local server that speaks as much of it as the library asks for, in processes of their own since
the library reads its address when it is imported."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from config.errors import UserError
from config.paths import ROOT
from data.config import Source
from data.downloads import Patience
from data.hub import HubFile, Listing, listing
from tests.http_server import Fault, File
from tests.hub_server import COMMIT, HubServer, hub

CARD = b"""---
configs:
- config_name: default
  data_files:
  - {split: train, path: "data/*/*"}
- config_name: sample-10BT
  data_files:
  - {split: train, path: "sample/10BT/*"}
- config_name: chats
  data_files:
  - {split: train, path: chats/train.jsonl}
  - {split: test, path: chats/test.jsonl}
---
# A set
"""

READ = """
import json, sys
from collections import Counter
from pathlib import Path
import data.remote as remote
from config.errors import UserError
from data.config import Source
from data.downloads import Patience
from data.remote import provenance
from data.sources import read_source

cache = Path(sys.argv[1])
remote.PATIENCE = Patience(timeout=30.0, attempts=3, first_wait=0.0)
for words in json.loads(sys.argv[2]):
    source = Source(**words)
    try:
        texts = [document.content for document in read_source(source, "pretrain", 0, cache, Counter())]
        print(json.dumps({"texts": texts, **provenance(source, cache)}, default=str))
    except UserError as error:
        print(json.dumps({"error": str(error)}))
"""


def _table(*texts: str) -> bytes:
    stream = pa.BufferOutputStream()
    pq.write_table(pa.table({"id": list(range(len(texts))), "text": texts}), stream)
    return bytes(stream.getvalue())


def _chat(asked: str) -> bytes:
    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": "So."}]
    return (json.dumps({"messages": turns}) + "\n").encode()


FILES = {
    "README.md": CARD,
    "data/a/0.parquet": _table("a"),
    **{f"sample/10BT/{n:03}_00000.parquet": _table(f"{n} one", f"{n} two") for n in range(4)},
    "chats/train.jsonl": _chat("Why?"),
    "chats/test.jsonl": _chat("How?"),
}


@pytest.fixture
def server() -> Iterator[HubServer]:
    plain = {"train.jsonl": b'{"text": "plain"}\n', "notes.md": b"no card"}
    with hub(o__set=FILES, o__plain=plain, o__csv={"a.csv": b"text\nx\n"}) as running:
        yield running


def _read(server: HubServer, tmp_path: Path, *sources: dict) -> list[dict]:
    done = subprocess.run(
        [sys.executable, "-c", READ, str(tmp_path / "cache"), json.dumps([{"hub": "o/set"} | s for s in sources])],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path / "home"), "HF_ENDPOINT": server.url(""),
             "HF_TOKEN": "hf_word", "no_proxy": "127.0.0.1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_configurations_splits_and_files(server: HubServer, tmp_path: Path) -> None:
    sample, part, default, other, plain = _read(
        server, tmp_path,
        {"subset": "sample-10BT"}, {"subset": "sample-10BT", "files": "*/00[1-2]_*"}, {},
        {"subset": "chats", "split": "test", "revision": "v1"}, {"hub": "o/plain"},
    )  # fmt: skip
    assert sample["texts"] == [f"{n} {word}" for n in range(4) for word in ("one", "two")]
    assert part["texts"] == sample["texts"][2:6]
    assert default["texts"] == ["a"]
    assert "How?" in json.dumps(other["texts"]) and "Why?" not in json.dumps(other["texts"])
    assert plain["texts"] == ["plain"]
    assert sample["commit"] == COMMIT
    assert [file["path"] for file in part["files"]] == [f"hub:o/set/sample/10BT/00{n}_00000.parquet" for n in (1, 2)]
    fetched = [entry for entry in server.asked if entry.startswith("GET") and entry.endswith("parquet")]
    assert len(fetched) == len(set(fetched)) == 5, "a file that two sources name is downloaded once"
    assert {headers["Authorization"] for _, headers in server.requests} == {"Bearer hf_word"}
    assert not [path for path in (tmp_path / "cache").rglob("*.parquet*") if path.name.endswith(".part")]


def test_what_was_read_once_is_read_without_the_hub(server: HubServer, tmp_path: Path) -> None:
    first = _read(server, tmp_path, {"subset": "sample-10BT"})
    count = len(server.asked)
    assert _read(server, tmp_path, {"subset": "sample-10BT"}) == first
    assert len(server.asked) == count


def test_what_is_not_there_is_one_line(server: HubServer, tmp_path: Path) -> None:
    asked = {
        "Available: ['default', 'sample-10BT', 'chats']": {"subset": "nope"},
        "no split 'test', found train": {"split": "test"},
        "`files` matches none of its 1 files, such as data/a/0.parquet": {"files": "z*"},
        "Revision Not Found": {"revision": "v9"},
        "Repository Not Found": {"hub": "o/none"},
        "a.csv is of an unknown kind": {"hub": "o/csv"},
    }
    for found, part in zip(_read(server, tmp_path, *asked.values()), asked, strict=True):
        assert part in found["error"] and "\n" not in found["error"]
        assert found["error"].startswith("hub:o/")


def test_a_file_that_is_not_what_the_hub_says(server: HubServer, tmp_path: Path) -> None:
    path = f"/datasets/o/set/resolve/{COMMIT}/data/a/0.parquet"
    body = FILES["data/a/0.parquet"]
    server.files[path] = File(body[:-1] + b"!")
    (found,) = _read(server, tmp_path, {})
    assert "hub" not in found and "the file's sha256 is" in found["error"]
    assert not list((tmp_path / "cache" / "files").glob("*.parquet"))
    server.files[path] = File(body)
    server.faults = [Fault(status=503), Fault(cut=len(body) // 2)]
    (found,) = _read(server, tmp_path, {})
    assert found["texts"] == ["a"]


def test_a_hub_that_is_busy_and_one_that_stays_so(server: HubServer, tmp_path: Path) -> None:
    server.api_faults = [500] * 2
    assert _read(server, tmp_path, {})[0]["texts"] == ["a"]
    server.api_faults = [500] * 1000
    (found,) = _read(server, tmp_path, {"subset": "chats"})
    assert "can't be asked for its files" in found["error"] and "gave up after 3 attempts" in found["error"]


def test_a_list_that_is_kept_is_not_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import data.hub as module

    wanted = Listing(COMMIT, (HubFile("a.parquet", 3, "0" * 64), HubFile("b.txt", 5, None)))
    asked = []
    monkeypatch.setattr(module, "_ask", lambda *_: asked.append(1) or wanted)
    source = Source(hub="o/set")
    for _ in range(2):
        assert listing(source, tmp_path, Patience()) == wanted
    assert len(asked) == 1
    assert listing(Source(hub="o/set", split="test"), tmp_path, Patience()) == wanted
    assert len(asked) == 2


def test_errors_that_are_nobodys_fault_but_ours_are_not_explained_away(tmp_path: Path, monkeypatch) -> None:
    import data.hub as module

    def fail(error: Exception) -> None:
        raise error

    waits: list[float] = []
    monkeypatch.setattr(module, "_ask", lambda *_: fail(TypeError("a bug")))
    with pytest.raises(TypeError):
        listing(Source(hub="o/set"), tmp_path, Patience(), waits.append)
    monkeypatch.setattr(module, "_ask", lambda *_: fail(ConnectionError("no route")))
    with pytest.raises(UserError, match=r"no route.*gave up after 4 attempts"):
        listing(Source(hub="o/set"), tmp_path, Patience(attempts=4), waits.append)
    assert [0.5 * 2**n <= wait <= 2**n for n, wait in enumerate(waits)] == [True] * 3


def test_the_library_is_imported_for_a_hub_source_alone() -> None:
    code = (
        "import sys, data.hub, data.remote, data.sources, data.shards, stages.tokenize, stages.shard\n"
        "print({'datasets', 'huggingface_hub', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"
