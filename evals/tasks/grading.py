"""Judges of replies. Numbers are compared as numbers: "18." and "18.00" are both 18."""

import re
from collections.abc import Callable
from fractions import Fraction

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_THOUSANDS = re.compile(r"^-?\d{1,3}(,\d{3})+(\.\d+)?$")
_TERM = re.compile(r"([\d)]|\d[a-z])\s*$|\w$")
_REMAINDER = re.compile(r"(-?\d+(?:\.\d+)?)\s*(?:remainder|rem\.?|r\.?)\s*(\d+)", re.IGNORECASE)

Grade = Callable[[str], bool]


def numbers(text: str) -> list[Fraction]:
    """Every number in the text, in order. A minus between two terms is no sign: 7-3 and 5x -3 hold 3, `is -3` -3."""
    found = []
    for match in _NUMBER.finditer(text):
        written = match.group()
        if written.startswith("-") and _TERM.search(text[: match.start()]):
            written = written[1:]
        # A comma parts thousands, or else ends a clause: "12, so" and "1,200".
        pieces = [written] if _THOUSANDS.match(written) else written.split(",")
        found.extend(Fraction(piece.replace(",", "")) for piece in pieces if piece not in ("", "-"))
    return found


def final_number(answer: str) -> Grade:
    """The reply's last number equals `answer`."""
    expected = Fraction(answer)

    def grade(reply: str) -> bool:
        found = numbers(reply)
        return bool(found) and found[-1] == expected

    return grade


def quotient(answer: str) -> Grade:
    """A division: `7`, or `7 remainder 2` where something is left. A remainder of 0 may be said or not."""
    whole, _, rest = answer.partition(" remainder ")

    def grade(reply: str) -> bool:
        said = _REMAINDER.findall(reply)
        if said:
            return (Fraction(said[-1][0]), int(said[-1][1])) == (Fraction(whole), int(rest or 0))
        return not rest and final_number(whole)(reply)

    return grade


def words(text: str) -> list[str]:
    """The words and numbers of a text, lower-cased, without punctuation."""
    return re.findall(r"[^\W_]+(?:['’-][^\W_]+)*", text.lower())


def holds(answer: str) -> Grade:
    """The reply holds the answer's words in a row, as whole words."""
    expected = words(answer)

    def grade(reply: str) -> bool:
        found = words(reply)
        return any(found[i : i + len(expected)] == expected for i in range(len(found) - len(expected) + 1))

    return grade
