"""Data sets of the Hugging Face hub: which files a source names, at which commit, and what they have to be.

The `datasets` library says what files a configuration and a split are made of, for which it reads the data set's card;
the hub gives their sizes and checksums. That list is kept in the cache folder: later stages and resumed runs read the
same commit, and ask the hub nothing. The files themselves are downloaded and checked like any other (`data.remote`).
"""

import fnmatch
import hashlib
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from config.errors import UserError
from config.files import read_json, write_json
from data.config import SUFFIXES, Source
from data.downloads import Patience
from data.text import shortened

_PATHS_AT_ONCE = 200  # in one question to the hub
_PASSING = (408, 425, 429)  # answers that another attempt may change, beside 500 and above


@dataclass(frozen=True)
class HubFile:
    """A file of a data set: its path in the repository, its size, and its SHA-256 where the hub knows it: of large
    files alone."""

    path: str
    bytes: int
    sha256: str | None


@dataclass(frozen=True)
class Listing:
    """The files of a source with a `hub`, in the library's order, at one commit."""

    commit: str
    files: tuple[HubFile, ...]


def listing(
    source: Source, cache_folder: Path, patience: Patience, sleep: Callable[[float], None] = time.sleep
) -> Listing:
    """The files of a source, from the cache folder if it was asked for before, else from the hub.

    Raises UserError when the hub can't be reached, or when it has no such data set, configuration, split or file.
    """
    path = _kept_at(source, cache_folder)
    if path.exists():
        kept = read_json(path, "a list of a data set's files")
        return Listing(kept["commit"], tuple(HubFile(**file) for file in kept["files"]))
    found = _patiently(source, cache_folder, patience, sleep)
    write_json(path, {"source": source.name, **asdict(found)})
    return found


def is_listed(source: Source, cache_folder: Path) -> bool:
    """Whether `listing` would ask the hub nothing."""
    return _kept_at(source, cache_folder).exists()


def _kept_at(source: Source, cache_folder: Path) -> Path:
    asked = [endpoint(), source.hub, source.subset, source.split, source.files, source.revision]
    digest = hashlib.sha256(repr(asked).encode()).hexdigest()[:16]
    return cache_folder / "hub" / f"{digest}-{(source.hub or '').replace('/', '-')}.json"


def endpoint() -> str:
    """The hub's address: huggingface.co, or what HF_ENDPOINT names."""
    from huggingface_hub import constants

    return constants.ENDPOINT


def file_url(source: Source, commit: str, path: str) -> str:
    """Where a file of a data set is downloaded from."""
    from huggingface_hub import hf_hub_url

    return hf_hub_url(source.hub or "", path, repo_type="dataset", revision=commit)


def token() -> str | None:
    """The token that the user gave the library (`hf auth login`, HF_TOKEN), for data sets that ask for one."""
    from huggingface_hub import get_token

    return get_token()


def _patiently(source: Source, cache_folder: Path, patience: Patience, sleep: Callable[[float], None]) -> Listing:
    failures = 0
    while True:
        try:
            return _ask(source, cache_folder, patience.timeout)
        except UserError:
            raise
        except Exception as error:
            failures += 1
            if not _may_pass(error):
                raise UserError(
                    f"{source.name}: the hub has no such data set to read: {shortened(error, 300)}; correct the source "
                    "in the profile, or ask for access to it"
                ) from error
            if failures >= patience.attempts:
                raise UserError(
                    f"{source.name}: {endpoint()} can't be asked for its files ({type(error).__name__}: "
                    f"{shortened(error)}); gave up after {failures} attempts; see whether the network is well and run "
                    "it again, or name files that you have as a `path`"
                ) from error
            sleep(min(patience.longest_wait, patience.first_wait * 2 ** (failures - 1)) * random.uniform(0.5, 1))


def _may_pass(error: Exception) -> bool:
    """Whether another attempt may help; an error that is neither the network's nor the hub's is raised again."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    status = getattr(getattr(error, "response", None), "status_code", None)
    if status is not None:
        return status >= 500 or status in _PASSING
    if isinstance(error, LocalEntryNotFoundError):  # the library's word for a network that fails
        return True
    if isinstance(error, FileNotFoundError | ValueError):
        return False
    if isinstance(error, OSError) or type(error).__module__.startswith(("httpx", "requests")):  # its versions differ
        return True
    raise error


def _ask(source: Source, cache_folder: Path, timeout: float) -> Listing:
    import datasets
    from huggingface_hub import HfApi

    datasets.config.HF_UPDATE_DOWNLOAD_COUNTS = False
    datasets.disable_progress_bars()
    api, name = HfApi(), source.hub or ""
    commit = api.dataset_info(name, revision=source.revision, timeout=timeout).sha
    assert commit is not None
    library = str(cache_folder / "library")
    builder = datasets.load_dataset_builder(name, source.subset, revision=commit, cache_dir=library)
    paths = _chosen(source, builder.config.data_files, f"hf://datasets/{name}@{commit}/")
    infos: dict[str, Any] = {}
    for start in range(0, len(paths), _PATHS_AT_ONCE):
        for info in api.get_paths_info(
            name, paths[start : start + _PATHS_AT_ONCE], revision=commit, repo_type="dataset"
        ):
            infos[info.path] = info
    return Listing(
        commit,
        tuple(HubFile(path, infos[path].size, infos[path].lfs.sha256 if infos[path].lfs else None) for path in paths),
    )


def _chosen(source: Source, splits: dict[str, list[str]] | None, prefix: str) -> list[str]:
    """The paths in the repository of the files that a source names."""
    splits = splits or {}
    split = source.split or "train"
    if split not in splits:
        raise UserError(
            f"{source.name}: there is no split {split!r}, found {', '.join(map(str, splits)) or 'none'}; "
            "name one of them as the source's `split`"
        )
    if not all(str(file).startswith(prefix) for file in splits[split]):  # the library looks for a folder first
        raise UserError(f"{source.name}: a folder of that name hides the hub's data set; run Tandem from elsewhere")
    paths = [str(file).removeprefix(prefix) for file in splits[split]]
    chosen = [path for path in paths if source.files is None or fnmatch.fnmatchcase(path, source.files)]
    if not chosen:
        raise UserError(
            f"{source.name}: `files` matches none of its {len(paths):,} files, such as {paths[0]}; it is a glob of "
            "their whole paths"
        )
    if odd := [path for path in chosen if not path.lower().endswith(SUFFIXES)]:
        raise UserError(f"{source.name}: {odd[0]} is of an unknown kind; Tandem reads {', '.join(SUFFIXES)}")
    return chosen
