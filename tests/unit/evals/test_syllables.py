"""The judge of the metre: the dictionary where it knows a word, rules where it does not."""

import pytest

from evals import syllables


@pytest.mark.parametrize(
    ("word", "count"),
    [("moon", 1), ("river", 2), ("waterfall", 3), ("Moon,", 1), ("moon's", 1), ("water-fall", 3), ("don't", 1)],
)
def test_words_of_the_dictionary(word, count):
    assert syllables.counts(word) == {count}


def test_a_word_with_two_pronunciations_has_both_counts():
    assert syllables.counts("fire") == {1, 2}
    assert syllables.fits("fire fire fire", (4,))
    assert not syllables.fits("fire fire fire", (7,))


@pytest.mark.parametrize(
    ("word", "count"),
    [
        ("zorble", 2),
        ("blorked", 1),
        ("zate", 1),
        ("plonted", 2),
        ("snarfes", 1),
        ("bloxes", 2),
        ("mimsy", 2),
        ("brr", 1),
        ("borogove", 3),
    ],
)
def test_unknown_words_go_by_rule(word, count):
    assert syllables.by_rule(word) == count


def test_the_rules_agree_with_the_dictionary_on_most_words():
    words = [word for word in list(syllables._dictionary())[::97] if word.isalpha()]
    agree = sum(syllables.by_rule(word) in syllables.counts(word) for word in words)
    assert agree / len(words) > 0.8


def test_an_old_pond():
    assert syllables.fits("An old silent pond\nA frog jumps into the pond\nSplash! Silence again.")
    assert syllables.fits("\nan old silent pond\n\na frog jumps into the pond\nsplash silence again\n")


@pytest.mark.parametrize(
    "poem",
    [
        "",
        "An old silent pond",
        "An old silent pond\nA frog jumps into the water\nSplash! Silence again.",
        "An old silent pond\nA frog jumps into the pond\nSplash! Silence again.\nAgain",
    ],
)
def test_what_is_no_haiku(poem):
    assert not syllables.fits(poem)


def test_signs_have_no_syllables():
    assert syllables.line_counts("— 5 + !") == {0}
