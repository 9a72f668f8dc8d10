"""Sources to documents: the files a source names, and what is in them.

Files are read as streams through the `datasets` library, which opens plain, compressed and columnar ones alike.
It is imported when the first file is read, and so is what downloads files: `list_files` alone serves the resolve
stage, which has to be quick.
"""

import codecs
import errno
import glob
import gzip
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from config.errors import UserError
from config.paths import ROOT
from data.builtin import generated
from data.config import SUFFIXES, Source
from data.conversation import Document
from data.records import parse
from data.text import shortened

_FILES_AT_ONCE = 1000  # text files in one call of the library, whose fixed cost is milliseconds


def list_files(source: Source) -> list[Path]:
    """The files of a source with a `path`, absolute and sorted. Raises UserError if there are none to read."""
    assert source.path is not None
    pattern = str(ROOT / Path(source.path).expanduser())
    path = Path(pattern)
    if path.is_dir():
        found = [file for file in path.rglob("*") if not _hidden(file.relative_to(path))]
        what = "folder without a file to read"
    elif path.exists():
        found, what = [path], "file of an unknown kind"
    elif glob.has_magic(pattern):
        found = [Path(name) for name in glob.glob(pattern, recursive=True)]  # noqa: PTH207 (Path.glob needs a base)
        what = "pattern that matches no file to read"
    else:
        raise UserError(f"{source.path}: no such file or folder (looked at {path}); correct the source in the profile")
    files = sorted(file for file in found if file.name.lower().endswith(SUFFIXES) and file.is_file())
    if not files:
        raise UserError(f"{source.path}: {what}; Tandem reads {', '.join(SUFFIXES)}")
    return files


def _hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def read_source(
    source: Source, mixture: str, seed: int, cache_folder: Path, skipped: Counter[str]
) -> Iterator[Document]:
    """Every document of a source once, in a fixed order. `weight` is the mixture's matter.

    `cache_folder` is the profile's: files from elsewhere are downloaded to it. `skipped` counts by reason what was left
    out. Raises UserError for a file that cannot be had or read, with its name and the place in it.
    """
    if source.builtin is not None:
        yield from generated(source, mixture, seed)
    elif source.path is not None:
        yield from _read_files(list_files(source), source.name, cache_folder, skipped)
    else:
        from data.remote import local_copies

        for name, copy in local_copies(source, cache_folder):
            try:
                yield from _read_files([copy], source.name, cache_folder, skipped)
            except UserError as error:
                raise UserError(f"{name}: {error}; to download it again, delete {copy}") from None


def _read_files(files: list[Path], name: str, cache_folder: Path, skipped: Counter[str]) -> Iterator[Document]:
    library = cache_folder / "library"
    texts = [file for file in files if file.name.lower().endswith((".txt", ".md"))]
    for start in range(0, len(texts), _FILES_AT_ONCE):
        for text in _read_texts(texts[start : start + _FILES_AT_ONCE], library):
            yield from _document({"text": text}, name, skipped)
    for file in files:
        if file.name.lower().endswith((".txt", ".md")):
            continue
        for place, record in _read_records(file, library):
            try:
                yield from _document(record, name, skipped)
            except ValueError as error:
                raise UserError(f"{file}: {place}: {error}: {shortened(_as_json(record))}") from None


def _document(record: Any, name: str, skipped: Counter[str]) -> Iterator[Document]:
    content = parse(record, skipped)
    if content is not None:
        yield Document(content, name)


def _as_json(record: Any) -> str:
    try:
        return json.dumps(record, ensure_ascii=False, default=str)
    except ValueError:
        return str(record)


def _read_texts(files: list[Path], cache_folder: Path) -> Iterator[str]:
    """The whole text of each file, in order."""
    try:
        for row in _stream("text", files, cache_folder, sample_by="document", encoding="utf-8-sig"):
            yield row["text"]
    except UnicodeDecodeError:
        for file in files:
            _check_encoding(file)
        raise
    except OSError as error:
        raise UserError(f"{error.filename or files[0]}: cannot be read: {error.strerror or error}") from error


def _read_records(file: Path, cache_folder: Path) -> Iterator[tuple[str, Any]]:
    """The records of a file, each with its place in it ("line 12")."""
    try:
        if file.name.lower().endswith(".parquet"):
            for number, row in enumerate(_stream("parquet", [file], cache_folder), 1):
                yield f"record {number}", row
            return
        # Lines, not the library's JSON reader: that one wants every record to have the columns of the first.
        lines = _stream("text", [file], cache_folder, sample_by="line", encoding="utf-8-sig")
        for number, row in enumerate(lines, 1):
            if line := row["text"].strip():
                yield f"line {number}", _parse_json(line, file, number)
    except UserError:
        raise
    except UnicodeDecodeError:
        _check_encoding(file)
        raise
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{file}: the archive is damaged or cut off ({error}); get the file again") from error
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror or error}") from error
    except Exception as error:
        if type(error).__module__.split(".")[0] == "pyarrow":
            raise UserError(f"{file}: not a whole parquet file ({shortened(error)}); get the file again") from error
        raise


def _parse_json(line: str, file: Path, number: int) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: line {number} is not JSON ({error}): {shortened(line)}") from None


def _stream(kind: str, files: Iterable[Path], cache_folder: Path, **options: Any) -> Iterable[dict[str, Any]]:
    import datasets

    # Otherwise each load is counted by a request to the hub: nothing leaves the machine.
    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    datasets.disable_progress_bars()
    names = [glob.escape(str(file)) for file in files]  # the library takes names for patterns
    try:
        return datasets.load_dataset(
            kind, data_files=names, split="train", streaming=True, cache_dir=str(cache_folder), **options
        )
    except OSError as error:  # it writes lock files
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise UserError(f"{cache_folder}: disk full, a few kB are needed; make room and run again") from error
        raise


def _check_encoding(file: Path) -> None:
    """Raise UserError with the offset of the first byte that is no UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    consumed = 0
    with _open(file) as stream:
        while True:
            chunk = stream.read(1 << 20)
            pending = len(decoder.getstate()[0])
            try:
                decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                offset = consumed - pending + error.start
                raise UserError(
                    f"{file}: not UTF-8: byte 0x{error.object[error.start]:02x} at offset {offset:,}; "
                    f"convert it, for example: iconv -f latin1 -t utf-8"
                ) from None
            if not chunk:
                return
            consumed += len(chunk)


def _open(file: Path) -> IO[bytes]:
    return gzip.open(file, "rb") if file.name.lower().endswith(".gz") else file.open("rb")
