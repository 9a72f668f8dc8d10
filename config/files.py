"""Files that are whole or not there: write beside, flush to disk, rename."""

import errno
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from config.errors import UserError


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file so that a reader, or a kill at any moment, sees the old content or the new, never a part.

    Raises UserError when the disk is full.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    data = content.encode() if isinstance(content, str) else content
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise_if_disk_full(error, path.parent, len(data))
        raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically, keys in the given order, non-finite numbers as null."""
    write_atomic(path, json.dumps(finite(value), indent=1, ensure_ascii=False) + "\n")


def finite(value: Any) -> Any:
    """The same structure with NaN and infinities as None: JSON has neither."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return value


def read_json(path: Path, what: str) -> Any:
    """Read JSON; a missing or broken file is a UserError that says `what` it should have been."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing ({what}); run `dvc repro`") from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid JSON ({what}): {error}; delete it and run `dvc repro`") from None


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file's content; UserError when it is missing."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except FileNotFoundError:
        raise UserError(f"{path} is missing; run `dvc repro`") from None


def raise_if_disk_full(error: OSError, folder: Path, wanted: int) -> None:
    """Turn "no space left" into a UserError that names the folder and the room that is missing."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        folder = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
        stats = os.statvfs(folder)
        free = stats.f_bavail * stats.f_frsize
        raise UserError(
            f"the disk of {folder} is full: {wanted / 1e6:,.1f} MB to write, {free / 1e6:,.1f} MB free; "
            "free some room and run `dvc repro`: it goes on from the last checkpoint"
        ) from None
