"""Shards on disk, as a manifest names them: where they lie, and whether they are whole.

Apart from how they are built, so that an edit there does not concern what only reads them.
"""

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from config.errors import UserError
from config.paths import ROOT

FORMAT = 1
REBUILD = "rebuild it alone with: dvc repro --force --single-item shard"
VERIFIED = ".verified.json"  # in the folder of the shards: what was hashed, and what the files were like then


def resolve_folder(folder: str) -> Path:
    """A profile's `shard_folder` as an absolute path; relative ones start at the repository's root."""
    return ROOT / Path(folder).expanduser()


def mask_name(name: str) -> str:
    """The loss mask's file beside a .bin file."""
    return name.removesuffix(".bin") + ".mask"


def verify_once(manifest: dict[str, Any]) -> None:
    """`verify` in full, but of files that were hashed before and have not been written since (same size, time and
    inode) the hash is taken on trust: hundreds of gigabytes take minutes to read. Raises UserError."""
    folder = resolve_folder(manifest["folder"])
    memory = folder / VERIFIED
    try:
        known = json.loads(memory.read_text())
    except (OSError, ValueError):
        known = {}
    if not isinstance(known, dict):
        known = {}
    found: dict[str, list[Any]] = {}
    for split in manifest["splits"].values():
        for entry in split["files"]:
            verify_entry(folder, entry, full=False)
            names = [entry["name"], *([mask_name(entry["name"])] if "mask_sha256" in entry else [])]
            state = [[at.st_size, at.st_mtime_ns, at.st_ino] for at in map(Path.stat, map(folder.joinpath, names))]
            if known.get(entry["name"]) != state:
                verify_entry(folder, entry)
            found[entry["name"]] = state
    if any(known.get(name) != state for name, state in found.items()):
        with contextlib.suppress(OSError):  # a folder that can be read and not written is as good
            temporary = memory.with_suffix(".tmp")
            temporary.write_text(json.dumps(known | found))
            temporary.replace(memory)


def verify(manifest: dict[str, Any], full: bool = True) -> None:
    """Check that every file of a manifest is there, with its size and, if `full`, its SHA-256. Raises UserError."""
    folder = resolve_folder(manifest["folder"])
    for split in manifest["splits"].values():
        for entry in split["files"]:
            verify_entry(folder, entry, full)


def verify_entry(folder: Path, entry: dict[str, Any], full: bool = True) -> None:
    """The same for one entry of `files`, which may be two files."""
    _verify_file(folder / entry["name"], entry["bytes"], entry["sha256"], full)
    if "mask_sha256" in entry:
        _verify_file(folder / mask_name(entry["name"]), entry["mask_bytes"], entry["mask_sha256"], full)


def read_manifest(path: Path) -> dict[str, Any]:
    """Read a manifest. Raises UserError when it is missing or not one of this version."""
    try:
        manifest = json.loads(Path(path).read_text())
    except FileNotFoundError:
        raise UserError(f"{path}: no shards yet; run dvc repro") from None
    except ValueError as error:
        raise UserError(f"{path}: not a manifest of shards ({error}); {REBUILD}") from error
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise UserError(f"{path}: not a manifest of shards in format {FORMAT}; {REBUILD}")
    return manifest


def _verify_file(path: Path, size: int, digest: str, full: bool) -> None:
    try:
        found = path.stat().st_size
        if found != size:
            what = "truncated" if found < size else "too long"
            raise UserError(f"{path}: {what}: {found:,} bytes, expected {size:,}; {REBUILD}")
        if full:
            with path.open("rb") as stream:
                if hashlib.file_digest(stream, "sha256").hexdigest() != digest:
                    raise UserError(f"{path}: damaged: its SHA-256 is not the manifest's {digest[:12]}…; {REBUILD}")
    except FileNotFoundError:
        raise UserError(f"{path}: missing, expected {size:,} bytes; {REBUILD}") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}; check the disk, then {REBUILD}") from error
