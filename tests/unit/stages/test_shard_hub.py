"""Stages tokenize and shard on a profile whose text is a hub's data set, as commands, against a local hub."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from config.paths import ROOT
from stages import resolve, shard, tokenize
from tests.hub_server import COMMIT, hub
from tests.little_repository import run_stages, write_profile

TEXTS = [[f"file {file}, text {n}: the cat sat on the mat" for n in range(100)] for file in range(3)]


def _table(texts: list[str]) -> bytes:
    stream = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": texts}), stream)
    return bytes(stream.getvalue())


def _manifest(root: Path) -> dict:
    return json.loads((root / "runs" / "little" / "shards" / "pretrain.json").read_text())


def test_the_shards_are_those_of_the_same_files_on_the_disk(tmp_path: Path) -> None:
    local, clone = tmp_path / "local", tmp_path / "clone"
    files = {f"data/train-{n:05}-of-00003.parquet": _table(texts) for n, texts in enumerate(TEXTS)}
    for name, body in files.items():
        (local / name).parent.mkdir(parents=True, exist_ok=True)
        (local / name).write_bytes(body)
    write_profile(local, pretrain=[{"path": str(local / "data")}])
    run_stages(local, resolve, tokenize, shard)
    with hub(o__set=files) as server:
        clone.mkdir()
        write_profile(clone, pretrain=[{"hub": "o/set", "revision": "v1"}])
        environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path / "home")}
        environment |= {"HF_ENDPOINT": server.url(""), "no_proxy": "127.0.0.1"}
        for stage in ("resolve", "tokenize", "shard"):
            command = [sys.executable, "-m", f"stages.{stage}", "little"]
            command = command[:-1] if stage == "resolve" else command
            done = subprocess.run(command, cwd=clone, env=environment, capture_output=True, text=True, timeout=120)
            assert done.returncode == 0, done.stderr
            if stage == "resolve":
                assert not server.asked, "resolve runs at every `dvc repro`: it asks nobody"
    assert _manifest(clone)["splits"] == _manifest(local)["splits"]
    (source,) = _manifest(clone)["sources"]
    assert source["source"] == "hub:o/set" and source["commit"] == COMMIT
    assert [file["bytes"] for file in source["files"]] == [len(body) for body in files.values()]
    fetched = [entry for entry in server.asked if entry.startswith("GET") and entry.endswith(".parquet")]
    assert len(fetched) == 3, "tokenize has downloaded what shard reads"
