"""The calculator the model calls: a parser of numbers, + - * / and brackets, and nothing else.

Not Python's eval: no names, no powers, nothing to import. Numbers are exact fractions. Length, nesting and the
size of every intermediate result are bounded, so any input is answered or refused within a millisecond, in any
thread.
"""

import re
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the resolve stage reads this module, and has no time for the tokenizer's library
    from data.tokenizer import Tokenizer

ERROR = "error"  # what the model reads when its expression is refused

_MAX_CHARACTERS = 200
_MAX_DEPTH = 20
_MAX_DIGITS = 60
_MAX_VALUE = 10**_MAX_DIGITS
_EXACT_DECIMALS = 12
_ROUNDED_DECIMALS = 6

_SPELLINGS = str.maketrans({"×": "*", "·": "*", "÷": "/", "−": "-", "–": "-"})
_TOKEN = re.compile(r"\s*(?:(\d{1,3}(?:,\d{3})+(?:\.\d*)?|\d+\.?\d*|\.\d+)|([-+*/()]))", re.ASCII)


class _RefusedError(Exception):
    """The expression is not one, or is too big."""


def evaluate(expression: str) -> str | None:
    """The value of an expression such as `(12 + 3.5) * 4`, as a decimal number; None if it is refused.

    Accepts 18. and .5, 1,234,567, and × ÷ − for * / -. Decimals that end within 12 places are exact, others are
    rounded to 6; trailing zeros are dropped.
    """
    if len(expression) > _MAX_CHARACTERS:
        return None
    try:
        parser = _Parser(_tokens(expression.translate(_SPELLINGS)))
        value = parser.sum(0)
        return _format(value) if parser.at_end else None
    except (_RefusedError, ZeroDivisionError):
        return None


def _tokens(text: str) -> list[Fraction | str]:
    tokens: list[Fraction | str] = []
    text = text.rstrip()
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if not match:
            raise _RefusedError
        number, operator = match.groups()
        if number is None:
            tokens.append(operator)
        elif len(number) > _MAX_DIGITS or (tokens and isinstance(tokens[-1], Fraction)):
            raise _RefusedError
        else:
            tokens.append(Fraction(number.replace(",", "").rstrip(".")))
        position = match.end()
    return tokens


class _Parser:
    """Recursive descent over the tokens; the recursion is as deep as the brackets, at most _MAX_DEPTH."""

    def __init__(self, tokens: list[Fraction | str]) -> None:
        self._tokens = tokens
        self._position = 0

    @property
    def at_end(self) -> bool:
        return self._position == len(self._tokens)

    def sum(self, depth: int) -> Fraction:
        value = self._product(depth)
        while (operator := self._take("+", "-")) is not None:
            other = self._product(depth)
            value = _bounded(value + other if operator == "+" else value - other)
        return value

    def _product(self, depth: int) -> Fraction:
        value = self._signed(depth)
        while (operator := self._take("*", "/")) is not None:
            other = self._signed(depth)
            value = _bounded(value * other if operator == "*" else value / other)
        return value

    def _signed(self, depth: int) -> Fraction:
        sign = 1
        while (operator := self._take("+", "-")) is not None:
            sign = -sign if operator == "-" else sign
        return sign * self._operand(depth)

    def _operand(self, depth: int) -> Fraction:
        if self.at_end:
            raise _RefusedError
        token = self._tokens[self._position]
        self._position += 1
        if isinstance(token, Fraction):
            return token
        if token != "(" or depth >= _MAX_DEPTH:
            raise _RefusedError
        value = self.sum(depth + 1)
        if self._take(")") is None:
            raise _RefusedError
        return value

    def _take(self, *wanted: str) -> str | None:
        if self.at_end or self._tokens[self._position] not in wanted:
            return None
        token = self._tokens[self._position]
        self._position += 1
        return str(token)


def _bounded(value: Fraction) -> Fraction:
    if abs(value.numerator) >= _MAX_VALUE or value.denominator >= _MAX_VALUE:
        raise _RefusedError
    return value


def _format(value: Fraction) -> str:
    if value.denominator == 1:
        return str(value.numerator)
    places = _EXACT_DECIMALS
    if (10**places) % value.denominator:
        places = _ROUNDED_DECIMALS
        while round(value * 10**places) == 0:  # 1/3000000000 is small, but not 0
            places += _ROUNDED_DECIMALS
    digits = str(abs(round(value * 10**places))).rjust(places + 1, "0")
    text = f"{digits[:-places]}.{digits[-places:]}".rstrip("0").rstrip(".")
    return f"-{text}" if value < 0 else text


class CalculatorTool:
    """The calculator as the engine uses it: between token ids. The engine itself knows no tokenizer."""

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        self.call_start = tokenizer.calculator_start
        self.call_end = tokenizer.calculator_end
        self.output_start = tokenizer.output_start
        self.output_end = tokenizer.output_end

    def run(self, expression_ids: list[int]) -> list[int]:
        """Ids of the answer to the expression, without the output marks; those of "error" if it is refused."""
        answer = evaluate(self._tokenizer.decode(expression_ids))
        return self._tokenizer.encode(ERROR if answer is None else answer)
