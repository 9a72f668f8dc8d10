"""Judges of replies: numbers as numbers, words as whole words."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evals.tasks import grading


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("18.", [18]),
        ("18.00", [18]),
        ("12, so 3", [12, 3]),
        ("1,200 and 1,2", [1200, 1, 2]),
        ("7 - 3 = 4", [7, 3, 4]),
        ("it is -5.", [-5]),
        ("x = -5", [-5]),
        ("5-9=-4", [5, 9, -4]),
        ("0.5 and 14.285714.", ["0.5", "14.285714"]),
        ("5x = 10", [5, 10]),
        ("none", []),
    ],
)
def test_numbers_in_a_text(text, expected):
    assert grading.numbers(text) == [Fraction(value) for value in expected]


@pytest.mark.parametrize("reply", ["18", "18.", "18.00", "so 9 × 2 = 18 apples.", "The answer is 18!"])
def test_the_final_number_counts(reply):
    assert grading.final_number("18")(reply)


@pytest.mark.parametrize("reply", ["", "eighteen", "180", "1.8", "-18", "18 is 9 + 9", "18.5"])
def test_other_numbers_are_wrong(reply):
    assert not grading.final_number("18")(reply)


@given(st.integers(-(10**9), 10**9), st.integers(0, 3))
def test_any_number_equals_itself_however_it_is_written(value, zeros):
    written = f"{value}." if not zeros else f"{value}.{'0' * zeros}"
    assert grading.final_number(str(value))(f"so x = {written}")
    assert not grading.final_number(str(value + 1))(f"so x = {written}")
    assert grading.final_number(str(value))(f"so x = {value:,}.")


@pytest.mark.parametrize(
    ("answer", "reply", "right"),
    [
        ("7", "so 56 / 8 = 7.", True),
        ("7", "so 56 / 8 = 7 remainder 0.", True),
        ("7", "so 57 / 8 = 7 remainder 1.", False),
        ("7 remainder 1", "so 57 / 8 = 7 remainder 1.", True),
        ("7 remainder 1", "7 r 1", True),
        ("7 remainder 1", "so 57 / 8 = 7.", False),
        ("7 remainder 1", "1 remainder 7", False),
        ("7 remainder 1", "", False),
    ],
)
def test_divisions(answer, reply, right):
    assert grading.quotient(answer)(reply) is right


@pytest.mark.parametrize(
    ("answer", "reply", "right"),
    [
        ("Paris", "The capital of France is Paris.", True),
        ("Paris", "paris", True),
        ("Paris", "Parisian", False),
        ("New Delhi", "The capital of India is New Delhi.", True),
        ("New Delhi", "Delhi is new", False),
        ("hee-haw", "A donkey says hee-haw.", True),
        ("low", "The opposite of high is slow.", False),
    ],
)
def test_words(answer, reply, right):
    assert grading.holds(answer)(reply) is right
