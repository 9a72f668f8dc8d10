"""Which files a profile reads, with their sizes and hashes: what makes an edited text rerun the stages that read it.

Of sources that lie elsewhere it holds what the profile says, and asks no server: a file that was downloaded stays as it
is until its copy is deleted, and shard manifests record what it was.
"""

import hashlib
import json
import os
from pathlib import Path

from config.paths import ROOT
from data.config import MIXTURES, DataConfig, Source
from data.sources import list_files

Entry = dict[str, str | int | None]


def take(config: DataConfig, cache: Path) -> dict[str, list[Entry]]:
    """For each mixture its files as {"path", "bytes", "sha256"}, sorted by path; relative sources stay relative.

    `cache` is a small JSON file with the hashes of files by size and modification time, so that only changed files
    are read. Raises UserError for a source that is missing or empty.
    """
    known = _read_cache(cache)
    seen: dict[str, list] = {}
    listing = {
        mixture: sorted(_entries(getattr(config, mixture), known, seen), key=lambda entry: entry["path"])
        for mixture in MIXTURES
    }
    if seen != known:
        cache.parent.mkdir(parents=True, exist_ok=True)
        temporary = cache.with_name(f"{cache.name}.{os.getpid()}.tmp")
        temporary.write_text(json.dumps(seen))
        temporary.replace(cache)
    return listing


def _entries(sources: tuple[Source, ...], known: dict[str, list], seen: dict[str, list]) -> list[Entry]:
    entries: dict[str, Entry] = {}
    for source in sources:
        if source.url is not None:
            entries[source.name] = {"path": source.name, "bytes": source.bytes, "sha256": source.sha256}
        if source.hub is not None:
            entries[source.name] = {"path": source.name, "revision": source.revision}
        if source.path is None:
            continue
        relative = not Path(source.path).expanduser().is_absolute()
        for file in list_files(source):
            shown = os.path.relpath(file, ROOT) if relative else str(file)
            status = file.stat()
            remembered = known.get(str(file))
            if remembered and remembered[:2] == [status.st_size, status.st_mtime_ns]:
                digest = remembered[2]
            else:
                with file.open("rb") as stream:
                    digest = hashlib.file_digest(stream, "sha256").hexdigest()
            seen[str(file)] = [status.st_size, status.st_mtime_ns, digest]
            entries[shown] = {"path": shown, "bytes": status.st_size, "sha256": digest}
    return list(entries.values())


def _read_cache(cache: Path) -> dict[str, list]:
    try:
        known = json.loads(cache.read_text())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
