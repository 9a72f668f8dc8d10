"""Byte-level BPE with nine chat marks, kept in one tokenizer.json (Hugging Face format).

The marks are the last nine ids. They are not registered with the library as special tokens, so no text is ever
parsed for them: a `<|bos|>` that somebody types is eight ordinary characters.
"""

import codecs
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from config.errors import UserError
from data.text import clean_text, readable_size

SPECIALS = (
    "<|bos|>",
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|calculator_start|>",
    "<|calculator_end|>",
    "<|output_start|>",
    "<|output_end|>",
)

# GPT-4's split, but every digit is a token of its own: sums are learned in columns.
SPLIT = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"

# Longer texts are encoded in pieces, so that one line of 200 MB needs little memory. At these places SPLIT always
# starts a new word, so the ids are those of the whole text.
_SAFE_CUT = re.compile(r"(?<=[A-Za-z])(?= [A-Za-z])|(?<=\n)(?=\S)")
_PIECE_CHARACTERS = 1_000_000
_CUT_WINDOW = 100_000
_AT_ONCE_CHARACTERS = 8_000_000


def _byte_of_character() -> dict[str, int]:
    """The printable stand-in that byte-level BPE (GPT-2) uses for each byte, reversed."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    characters = {chr(byte): byte for byte in printable}
    characters.update({chr(256 + position): byte for position, byte in enumerate(others)})
    return characters


_BYTE_OF = _byte_of_character()


def pieces(text: str) -> Iterator[str]:
    """Cut a very long text where encoding the pieces gives the same ids as encoding the whole."""
    start = 0
    while len(text) - start > _PIECE_CHARACTERS:
        end = start + _PIECE_CHARACTERS
        cut = None
        for cut in _SAFE_CUT.finditer(text, end - _CUT_WINDOW, end):  # noqa: B007 (the last match is wanted)
            pass
        # Without a safe place the ids may differ from the whole's, the decoded text never does.
        end = cut.start() if cut else end
        yield text[start:end]
        start = end
    yield text[start:]


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    split = pre_tokenizers.Split(Regex(SPLIT), behavior="isolated")
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


class Tokenizer:
    """Text to ids and back. Safe to share between threads."""

    def __init__(self, serialized: str) -> None:
        self._serialized = serialized
        self._backend = Backend.from_str(serialized)
        vocabulary = self._backend.get_vocab()
        self.vocab_size: int = len(vocabulary)
        missing = [mark for mark in SPECIALS if mark not in vocabulary]
        if missing or sorted(vocabulary.values()) != list(range(self.vocab_size)):
            raise ValueError(f"not a Tandem tokenizer: {missing or 'ids have gaps'}")
        self.special_ids = frozenset(vocabulary[mark] for mark in SPECIALS)
        (
            self.bos,
            self.user_start,
            self.user_end,
            self.assistant_start,
            self.assistant_end,
            self.calculator_start,
            self.calculator_end,
            self.output_start,
            self.output_end,
        ) = (vocabulary[mark] for mark in SPECIALS)
        self.reply_ends = frozenset({self.assistant_end, self.bos, self.user_start})  # where a chat's reply is over
        self._bytes: list[bytes] = [b""] * self.vocab_size
        for token, index in vocabulary.items():
            if index not in self.special_ids:
                self._bytes[index] = bytes(_BYTE_OF[character] for character in token)

    def __reduce__(self) -> tuple[type["Tokenizer"], tuple[str]]:
        return Tokenizer, (self._serialized,)  # the library's part travels to another process as its JSON

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> "Tokenizer":
        """Learn merges from `texts`. The same texts give the same tokenizer, in any order.

        Raises UserError when no pair of tokens occurs twice before `vocab_size` is reached.
        """
        backend = Backend(models.BPE())
        backend.pre_tokenizer = _pre_tokenizer()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size - len(SPECIALS),
            min_frequency=2,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        backend.train_from_iterator((piece for text in texts for piece in pieces(clean_text(text))), trainer)
        learned = json.loads(backend.to_str())
        supported = len(learned["model"]["vocab"]) + len(SPECIALS)
        if supported < vocab_size:
            raise UserError(
                f"tokenizer.vocab_size is {vocab_size:,}, the text supports {supported:,}: "
                f"set tokenizer.vocab_size to at most {supported}, or add text"
            )
        for mark in SPECIALS:
            learned["model"]["vocab"][mark] = len(learned["model"]["vocab"])
        learned["decoder"] = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
        return cls(json.dumps(learned, ensure_ascii=False, indent=1) + "\n")

    @classmethod
    def load(cls, path: Path | str) -> "Tokenizer":
        """Read a tokenizer.json written by `save`. Raises UserError when it is missing or something else."""
        path = Path(path)
        try:
            return cls(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise UserError(f"{path}: no tokenizer here; run dvc repro") from None
        except Exception as error:  # the library raises bare Exception for unreadable JSON
            raise UserError(f"{path}: not a tokenizer of Tandem ({error}); delete it and run dvc repro") from error

    def save(self, path: Path | str) -> None:
        """Write tokenizer.json; the file appears whole or not at all. Raises UserError on a full disk."""
        path = Path(path)
        temporary = path.with_name(path.name + ".tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(self._serialized, encoding="utf-8", newline="\n")
            temporary.replace(path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            size = readable_size(len(self._serialized.encode()))
            raise UserError(f"{path}: cannot be written: {error.strerror} ({size} needed)") from error

    @cached_property
    def sha256(self) -> str:
        """Hash of the saved file's bytes."""
        return hashlib.sha256(self._serialized.encode()).hexdigest()

    def encode(self, text: str) -> list[int]:
        """Ids of `text`, with no marks added and none recognised."""
        ids: list[int] = []
        for piece in pieces(clean_text(text)):
            ids += self._backend.encode(piece, add_special_tokens=False).ids
        return ids

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text, encoded on all cores."""
        parts = [list(pieces(clean_text(text))) for text in texts]
        encoded = self._encode_pieces([piece for part in parts for piece in part])
        return [[index for _ in part for index in next(encoded)] for part in parts]

    def _encode_pieces(self, texts: list[str]) -> Iterator[list[int]]:
        # The library's answer is many times the size of the ids: it is asked for a few long pieces at a time.
        start = 0
        while start < len(texts):
            end, characters = start, 0
            while end < len(texts) and characters < _AT_ONCE_CHARACTERS:
                characters += len(texts[end])
                end += 1
            for encoding in self._backend.encode_batch_fast(texts[start:end]):
                yield encoding.ids
            start = end

    def decode(self, ids: Iterable[int]) -> str:
        """Text of `ids`; marks are dropped, bytes that are no UTF-8 become U+FFFD."""
        return b"".join([self._bytes[index] for index in ids]).decode("utf-8", "replace")

    def token_bytes(self, index: int) -> bytes:
        """The bytes a token stands for; empty for the marks."""
        return self._bytes[index]

    @cached_property
    def byte_lengths(self) -> np.ndarray:
        """(vocab,) int64: bytes of each token, 0 for the marks. Over any text's ids they sum to its UTF-8 length."""
        lengths = np.array([len(token) for token in self._bytes], dtype=np.int64)
        lengths.setflags(write=False)
        return lengths


class StreamDecoder:
    """Decodes ids as they come, holding back the bytes of an unfinished character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, index: int) -> str:
        """The text that `index` completes: possibly nothing, never half a character."""
        return self._decoder.decode(self._tokenizer.token_bytes(index))

    def finish(self) -> str:
        """What is left: U+FFFD if the last character never came to its end."""
        rest = self._decoder.decode(b"", final=True)
        self._decoder.reset()
        return rest
