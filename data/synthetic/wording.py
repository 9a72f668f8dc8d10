"""How people type: several ways to ask for one thing, and often neither capitals nor punctuation.

The variety is on the user's side only. The assistant answers each kind in one form, which is what a model of a
million parameters can learn.
"""

import re
from dataclasses import dataclass
from random import Random

from data.synthetic.draw import pick
from data.synthetic.reserve import reserved_among

_PUNCTUATION = str.maketrans("", "", "?!.,'")
_SPACE = re.compile(r"[^\w+\-*/=×÷()]+")


@dataclass(frozen=True)
class Wordings:
    """Format strings: those that training uses, and those kept for the evaluation."""

    train: tuple[str, ...]
    reserved: tuple[str, ...]

    @property
    def all(self) -> tuple[str, ...]:
        return self.train + self.reserved


# What most people write: always taught. (Letters of the wording without its phrase.)
_ALWAYS = ("", "whatis", "whats", "ifthenxis", "solve")

# A set of frames, `@` standing for the phrase, and the phrases that each of them takes.
Group = tuple[tuple[str, ...], tuple[str, ...]]


def compose(kind: str, *groups: Group, one_in: int = 5) -> Wordings:
    """Every frame with every phrase of its group; about one in `one_in` of the combinations is reserved.

    So the evaluation asks in new combinations of familiar pieces. Wordings that differ in signs only (a + b, a+b)
    are reserved together, or the evaluation would be no news.
    """
    letters: dict[str, str] = {}  # of each wording
    optional: set[str] = set()  # those letters that may be reserved
    for frames, phrases in groups:
        for frame in frames:
            for phrase in phrases:
                text = frame.replace("@", phrase)
                text = text if frame == "@" else text[:1].upper() + text[1:]
                letters[text] = _letters(text)
                if _letters(frame) not in _ALWAYS:
                    optional.add(letters[text])
    kept = reserved_among(f"wording {kind}", optional, one_in)
    return Wordings(
        train=tuple(text for text, key in letters.items() if key not in kept),
        reserved=tuple(text for text, key in letters.items() if key in kept),
    )


def _letters(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.lower().replace("} x {", "} {"))


def casual(rng: Random, text: str, keep: str = "") -> str:
    """Return `text` as typed by someone: in 40 % of cases lower-cased, unpunctuated, or both.

    `keep` (a name, say) keeps its capitals: nobody can guess them back.
    """
    draw = rng.random()
    if draw < 0.6:
        return text
    if draw < 0.72:
        return _lower(text, keep)
    bare = text.translate(_PUNCTUATION).rstrip() or text
    return bare if draw < 0.84 else _lower(bare, keep)


def _lower(text: str, keep: str) -> str:
    if not keep:
        return text.lower()
    return keep.join(piece.lower() for piece in text.split(keep))


def ask(rng: Random, wordings: tuple[str, ...], keep: str = "", **slots: object) -> str:
    """A user's words: one of the wordings, its slots filled, as someone would type it."""
    return casual(rng, pick(rng, wordings).format(**slots), keep)


def normalise(text: str) -> str:
    """A prompt without what does not change its meaning: capitals, punctuation, runs of spaces."""
    return _SPACE.sub(" ", text.lower().translate(_PUNCTUATION)).strip()
