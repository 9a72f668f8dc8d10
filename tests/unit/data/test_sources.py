import gzip
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from config.errors import UserError
from data.config import Source
from data.conversation import Document, assistant, user
from data.sources import ROOT, list_files, read_source


def _read(path: Path | str, cache: Path, skipped: Counter[str] | None = None) -> list[Document]:
    source = Source(path=str(path))
    return list(read_source(source, "pretrain", 0, cache, Counter() if skipped is None else skipped))


def _texts(path: Path | str, cache: Path) -> list[str]:
    return [document.content for document in _read(path, cache)]


def test_every_format_gives_the_same_document(tmp_path: Path) -> None:
    text = 'Ünïcode 🙂\n\n"quotes" \u2028 and\ttabs\n'
    line = json.dumps({"title": "x", "text": text}) + "\n"
    (tmp_path / "a.txt").write_text(text, encoding="utf-8")
    (tmp_path / "b.MD").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())
    (tmp_path / "c.jsonl").write_text(line)
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(line.encode()))
    pq.write_table(pa.table({"text": [text], "n": [1]}), tmp_path / "e.parquet")
    assert _texts(tmp_path, tmp_path / "cache") == [text] * 5


def test_chats_from_jsonl_and_parquet(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"q{n}"}, {"role": "assistant", "content": "a"}]} for n in range(3)
    ]
    (tmp_path / "a.jsonl").write_text("\n\n".join(map(json.dumps, rows)))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "b.parquet")
    wanted = [(user(f"q{n}"), assistant("a")) for n in range(3)]
    assert [document.content for document in _read(tmp_path, tmp_path / "cache")] == wanted * 2


def test_records_of_one_file_may_differ_in_shape(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    mixed = [{"text": "t"}, {"question": "q", "answer": "a"}, {"text": "", "x": [1]}, {"messages": [], "text": 3}]
    path.write_text("\n".join(map(json.dumps, mixed)))
    skipped: Counter[str] = Counter()
    documents = _read(path, tmp_path / "cache", skipped)
    assert documents == [Document("t", str(path)), Document((user("q"), assistant("a")), str(path))]
    assert skipped == {"empty": 1, "no answer": 1}


def test_names_that_look_like_patterns(tmp_path: Path) -> None:
    for name in ("a [1] *.txt", "b?.txt", "ü #%20 &.txt"):
        (tmp_path / name).write_text(name)
        assert _texts(tmp_path / name, tmp_path / "cache") == [name]


def test_folders_globs_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sub").mkdir()
    for name in ("b.txt", "a.md", "sub/c.txt", "notes.pdf", ".hidden.txt"):
        (tmp_path / name).write_text(name)
    names = lambda path: [file.name for file in list_files(Source(path=str(path)))]
    assert names(tmp_path) == ["a.md", "b.txt", "c.txt"]
    assert names(tmp_path / "*.txt") == ["b.txt"]
    assert names(tmp_path / "**" / "*.txt") == ["b.txt", "c.txt"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert names("~/sub") == ["c.txt"]


def test_relative_paths_start_at_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import data.sources as module

    monkeypatch.setattr(module, "ROOT", tmp_path)
    (tmp_path / "a.txt").write_text("x")
    assert list_files(Source(path="a.txt")) == [tmp_path / "a.txt"]
    assert (ROOT / "data" / "sources.py").exists()


@pytest.mark.parametrize("name", ["missing.txt", "empty", "empty/*.txt", "notes.pdf"])
def test_nothing_to_read_is_an_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.pdf").write_text("x")
    with pytest.raises(UserError, match=name.replace("*", r"\*")):
        list_files(Source(path=str(tmp_path / name)))


@pytest.mark.parametrize("suffix", [".txt", ".md", ".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("offset", [7, 3_000_000])
def test_a_byte_that_is_no_utf8_is_named(tmp_path: Path, suffix: str, offset: int) -> None:
    (tmp_path / f"0{suffix.replace('.gz', '')}").write_text('{"text": "fine"}')
    bad = b'{"text"' + b" " * (offset - 7) + b'\xff: "x"}'
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(gzip.compress(bad) if suffix.endswith("gz") else bad)
    with pytest.raises(UserError, match=rf"bad\{suffix}: not UTF-8: byte 0xff at offset {offset:,};"):
        _read(tmp_path, tmp_path / "cache")


def test_a_character_cut_off_at_the_end_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abc\xf0\x9f\x99")
    with pytest.raises(UserError, match="byte 0xf0 at offset 3;"):
        _read(tmp_path, tmp_path / "cache")


def test_a_record_of_unknown_shape_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "fine"}\n\n' + json.dumps({"body": "y" * 1000}))
    with pytest.raises(UserError, match=r'x\.jsonl: line 3: unknown shape.*"body": "yyy.*…') as caught:
        _read(path, tmp_path / "cache")
    assert len(str(caught.value)) < 500
    pq.write_table(pa.table({"body": ["a"]}), tmp_path / "x.parquet")
    with pytest.raises(UserError, match=r'x\.parquet: record 1: unknown shape.*"body": "a"'):
        _read(tmp_path / "x.parquet", tmp_path / "cache")


@pytest.mark.parametrize("line", ['{"text": "cut of', "plain words", "{" * 100_000])
def test_a_line_that_is_no_json_is_shown(tmp_path: Path, line: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "fine"}\n' + line)
    with pytest.raises(UserError, match=r"x\.jsonl: line 2 is not JSON") as caught:
        _read(path, tmp_path / "cache")
    assert line[:10] in str(caught.value)


def test_damaged_archives_are_named(tmp_path: Path) -> None:
    content = gzip.compress(b"".join(json.dumps({"text": str(n)}).encode() + b"\n" for n in range(10_000)))
    for name, damaged in (
        ("cut", content[:-100]),
        ("flip", content[:500] + b"\0" * 20 + content[520:]),
        ("no", b"words"),
    ):
        path = tmp_path / f"{name}.jsonl.gz"
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=rf"{name}\.jsonl\.gz: "):
            _read(path, tmp_path / "cache")
    path = tmp_path / "x.parquet"
    path.write_bytes(b"PAR1 words")
    with pytest.raises(UserError, match=r"x\.parquet: not a whole parquet"):
        _read(path, tmp_path / "cache")


def test_an_unknown_built_in_source_lists_the_known(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no built-in source 'poems'; there are "):
        list(read_source(Source(builtin="poems", count=1), "pretrain", 0, tmp_path, Counter()))


def test_reading_asks_nothing_of_the_network(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("words")
    code = (
        "import socket, sys\n"
        "def refuse(*a, **k): print('network', a); raise OSError('no network')\n"
        "socket.getaddrinfo = refuse; socket.socket.connect = refuse\n"
        "from collections import Counter; from pathlib import Path\n"
        "from data.config import Source; from data.sources import read_source\n"
        "source = Source(path=sys.argv[1])\n"
        "print(len(list(read_source(source, 'pretrain', 0, Path(sys.argv[2]), Counter()))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "a.txt"), str(tmp_path / "cache")],
        cwd=ROOT, capture_output=True, text=True, env={"PATH": "/usr/bin", "HOME": str(tmp_path / "home")},
    )  # fmt: skip
    assert done.stdout == "1\n", done.stdout + done.stderr
    assert not (tmp_path / "home").exists()


def test_listing_files_imports_nothing_heavy() -> None:
    code = "import sys, data.inventory; print({'torch', 'datasets', 'tokenizers', 'numpy'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"
