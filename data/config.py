"""The profile's `data:` and `tokenizer:` sections. Imports nothing heavy: the resolve stage reads it."""

import re
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

from config.schema import section

MIXTURES = ("pretrain", "midtrain", "sft")
SUFFIXES = (".txt", ".md", ".jsonl", ".jsonl.gz", ".parquet")  # of the files that Tandem reads

_KINDS = ("path", "url", "hub", "builtin")
_OPTIONS = {
    "url": ("sha256", "bytes", "format"),
    "hub": ("subset", "split", "files", "revision"),
    "builtin": ("count",),
}
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")


@section
class Cleaning:
    """Lengths are in characters (code points), shares are of a document's characters; null and false mean off.

    `min_characters`, `max_characters`: what a document must have at least and at most, after everything else.
    `strip_controls`: remove control characters other than line breaks and tabs; other line breaks become "\\n".
    `max_broken_share`: of U+FFFD and lone surrogates, which stand where an encoding was lost. 0.001, say.
    `mojibake`: UTF-8 once read as Latin-1 ("Ã©" for "é"): "ignore" it, "count" it, or "drop" the document.
    `min_text_share`: of letters, digits, spaces and punctuation outside base64 and the like. 0.8, say.
    `drop_duplicates`: the same content again, in whatever source. About 100 MB of memory per million documents.
    """

    min_characters: int | None = None
    max_characters: int | None = None
    strip_controls: bool = False
    max_broken_share: float | None = None
    mojibake: Literal["ignore", "count", "drop"] = "ignore"
    min_text_share: float | None = None
    drop_duplicates: bool = False

    def __post_init__(self) -> None:
        least, most = self.min_characters, self.max_characters
        if least is not None and least < 1:
            raise ValueError(f"`min_characters` is {least}, must be at least 1, or null for no limit")
        if most is not None and most < (least or 1):
            raise ValueError(f"`max_characters` is {most}, must be at least {least or 1}, or null for no limit")
        if self.max_broken_share is not None and not 0 <= self.max_broken_share < 1:
            raise ValueError(f"`max_broken_share` is {self.max_broken_share}, must be from 0 to below 1, or null")
        if self.min_text_share is not None and not 0 < self.min_text_share <= 1:
            raise ValueError(f"`min_text_share` is {self.min_text_share}, must be above 0 and at most 1, or null")


@section
class Source:
    """Where documents come from: `path`, `url`, `hub` or `builtin`, exactly one of them.

    `path` is a file, a folder or a glob; `~` is expanded; a relative one starts at the repository's root.
    `url` is one file behind http or https. It is downloaded once; `sha256` and `bytes` are what it has to be, and
    `format` ("jsonl.gz") says what it is where its name does not.
    `hub` is a data set of the Hugging Face hub, such as HuggingFaceFW/fineweb-edu: its `subset` (configuration) and
    `split` ("train" unless given), of which `files` (a glob) takes some, at a `revision` (a commit, a tag, a branch).
    `builtin` is one of Tandem's generators, and `count` its number of documents.
    `weight` is how often each document is used in a pass, in epochs: 0.5 a fixed half of them, 2.0 each one twice.
    `cleaning`, where it is given, stands in the place of the data section's.
    """

    path: str | None = None
    url: str | None = None
    hub: str | None = None
    builtin: str | None = None
    sha256: str | None = None
    bytes: int | None = None
    format: Literal["txt", "md", "jsonl", "jsonl.gz", "parquet"] | None = None
    subset: str | None = None
    split: str | None = None
    files: str | None = None
    revision: str | None = None
    count: int | None = None
    weight: float = 1.0
    cleaning: Cleaning | None = None

    def __post_init__(self) -> None:
        given = [kind for kind in _KINDS if getattr(self, kind) is not None]
        if len(given) != 1:
            found = " and ".join(f"`{kind}`" for kind in given) or "none of them"
            raise ValueError(f"a source has exactly one of `path`, `url`, `hub` and `builtin`, found {found}")
        for kind, options in _OPTIONS.items():
            for option in options:
                if kind != given[0] and getattr(self, option) is not None:
                    raise ValueError(f"`{option}` goes with `{kind}`, this source has `{given[0]}`")
        if self.builtin is not None and (self.count is None or self.count < 1):
            raise ValueError("a `builtin` source needs `count`, the number of documents, at least 1")
        if self.url is not None:
            self._check_url()
        if self.hub is not None and not _REPOSITORY.fullmatch(self.hub):
            raise ValueError(f"`hub` is {self.hub!r}, must be a data set's name, such as HuggingFaceFW/fineweb-edu")
        if not 0 < self.weight <= 1000:
            raise ValueError(f"`weight` is {self.weight}, must be above 0 and at most 1000")

    def _check_url(self) -> None:
        try:
            parts = urlsplit(self.url or "")
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError
        except ValueError:  # its own words would show a password
            raise ValueError("`url` must be http://host/path or https://host/path") from None
        if self.format is None and not parts.path.lower().endswith(SUFFIXES):
            raise ValueError(f"`url` ends in none of {', '.join(SUFFIXES)}: say with `format` what kind of file it is")
        if self.sha256 is not None and not re.fullmatch("[0-9A-Fa-f]{64}", self.sha256):
            raise ValueError("`sha256` must be 64 hexadecimal digits")
        if self.bytes is not None and self.bytes < 0:
            raise ValueError(f"`bytes` is {self.bytes}, must be at least 0")

    @property
    def name(self) -> str:
        """What reports and manifests call this source; of a URL without what may be secret in it."""
        if self.url is not None:
            parts = urlsplit(self.url)
            return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))
        if self.hub is not None:
            return ":".join(filter(None, (f"hub:{self.hub}", self.subset, self.split, self.files)))
        return self.path if self.path is not None else f"builtin:{self.builtin}"


@section
class DataConfig:
    """Sources of the three mixtures and how they become rows of `context` + 1 tokens.

    `shard_folder` and `cache_folder` (downloaded files) belong on the fastest disk; relative ones start at the
    repository's root, and profiles may share them.
    """

    context: int
    pretrain: tuple[Source, ...]
    midtrain: tuple[Source, ...] = ()
    sft: tuple[Source, ...] = ()
    seed: int = 0
    validation_share: float = 0.01
    cleaning: Cleaning = Cleaning()
    shard_folder: str = ".work/shards"
    cache_folder: str = ".work/cache"

    def __post_init__(self) -> None:
        if not 8 <= self.context <= 1 << 20:
            raise ValueError(f"`context` is {self.context}, must be from 8 to 1048576 tokens")
        if not 0 <= self.validation_share <= 0.5:
            raise ValueError(f"`validation_share` is {self.validation_share}, must be from 0 to 0.5")
        if not self.pretrain:
            raise ValueError("`pretrain` names no source; give at least one")


@section
class TokenizerConfig:
    """`vocab_size` counts everything: 256 bytes, the merges and the nine chat specials."""

    vocab_size: int
    sample_megabytes: float = 200.0

    def __post_init__(self) -> None:
        if not 265 <= self.vocab_size <= 1 << 20:
            raise ValueError(f"`vocab_size` is {self.vocab_size}, must be from 265 (256 bytes, 9 specials) to 1048576")
        if self.sample_megabytes <= 0:
            raise ValueError(f"`sample_megabytes` is {self.sample_megabytes}, must be above 0")
