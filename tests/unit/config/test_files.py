"""Files are whole or absent."""

import errno
import os
from pathlib import Path

import pytest

from config.errors import UserError, run_main
from config.files import read_json, sha256_of, write_atomic, write_json


def test_replaces_the_content_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "file.txt"
    write_atomic(path, "first")
    write_atomic(path, "zweite Fassung: ü")
    assert path.read_text(encoding="utf-8") == "zweite Fassung: ü"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_failed_write_keeps_the_old_file_and_no_part_of_the_new(tmp_path: Path, monkeypatch, failing: str) -> None:
    path = tmp_path / "file.txt"
    write_atomic(path, "old")

    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "broken disk")

    if failing == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    else:
        monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(OSError, match="broken disk"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_is_one_line_that_names_the_folder(tmp_path: Path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="is full") as caught:
        write_atomic(tmp_path / "a" / "file.txt", "x")
    assert str(tmp_path / "a") in str(caught.value) and "\n" not in str(caught.value)


def test_a_full_disk_that_refuses_the_folder_itself(tmp_path: Path, monkeypatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(UserError, match="is full"):
        write_atomic(tmp_path / "a" / "b" / "file.txt", "x")


def test_json_has_no_nan_and_keeps_text_readable(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"b": float("nan"), "a": [float("inf"), (1.5, "→")]})
    assert read_json(path, "a test") == {"b": None, "a": [None, [1.5, "→"]]}
    assert "→" in path.read_text(encoding="utf-8")
    assert list(read_json(path, "a test")) == ["b", "a"]


@pytest.mark.parametrize("content", [None, b"{", b"\xff\xfe"])
def test_missing_or_broken_json_is_one_line(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.json is (missing|not valid JSON) \(a test\)") as caught:
        read_json(path, "a test")
    assert "\n" not in str(caught.value)


def test_run_main_turns_a_user_error_into_a_line_and_status_1(capsys) -> None:
    def main() -> None:
        raise UserError("found a, expected b; do c")

    with pytest.raises(SystemExit) as caught:
        run_main(main)
    assert caught.value.code == 1
    assert capsys.readouterr().err == "error: found a, expected b; do c\n"


@pytest.mark.parametrize(("status", "code"), [(None, 0), (0, 0), (143, 143)])
def test_run_main_exits_with_the_status_returned(status: int | None, code: int) -> None:
    with pytest.raises(SystemExit) as caught:
        run_main(lambda: status)
    assert caught.value.code == code


def test_hashing_what_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"x\.bin is missing; run `dvc repro`"):
        sha256_of(tmp_path / "x.bin")
    (tmp_path / "x.bin").write_bytes(b"abc")
    assert sha256_of(tmp_path / "x.bin").startswith("ba7816bf")
