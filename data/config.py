"""The profile's `data:` and `tokenizer:` sections. Imports nothing heavy: the resolve stage reads it."""

from typing import Literal

from config.schema import section

MIXTURES = ("pretrain", "midtrain", "sft")


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
    """Where documents come from: files (`path`) or a built-in generator (`builtin`), exactly one of the two.

    `path` is a file, a folder or a glob; `~` is expanded; a relative one starts at the repository's root.
    `weight` is how often each document is used in a pass: 0.5 a fixed half of them, 2.0 each one twice.
    `cleaning`, where it is given, stands in the place of the data section's.
    """

    path: str | None = None
    builtin: str | None = None
    count: int | None = None
    weight: float = 1.0
    cleaning: Cleaning | None = None

    def __post_init__(self) -> None:
        if (self.path is None) == (self.builtin is None):
            raise ValueError("a source has either `path` or `builtin`, exactly one of them")
        if self.builtin is None and self.count is not None:
            raise ValueError("`count` goes with `builtin`; for files use `weight`")
        if self.builtin is not None and (self.count is None or self.count < 1):
            raise ValueError("a `builtin` source needs `count`, the number of documents, at least 1")
        if not 0 < self.weight <= 1000:
            raise ValueError(f"`weight` is {self.weight}, must be above 0 and at most 1000")

    @property
    def name(self) -> str:
        """What reports and manifests call this source."""
        return self.path if self.path is not None else f"builtin:{self.builtin}"


@section
class DataConfig:
    """Sources of the three mixtures and how they become rows of `context` + 1 tokens."""

    context: int
    pretrain: tuple[Source, ...]
    midtrain: tuple[Source, ...] = ()
    sft: tuple[Source, ...] = ()
    seed: int = 0
    validation_share: float = 0.01
    cleaning: Cleaning = Cleaning()
    shard_folder: str = ".work/shards"

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
