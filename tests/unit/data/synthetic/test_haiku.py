"""The haiku's words have the syllables their tables say, so that its poems have 5, 7 and 5."""

from random import Random

import pytest

from data.synthetic import haiku, haiku_words
from evals import syllables

TABLES = {
    ("ADJECTIVES_ONE", 1),
    ("ADJECTIVES_TWO", 2),
    ("VERBS", 1),
    ("ENDINGS_ONE", 1),
    ("ENDINGS_TWO", 2),
    ("ADVERBS", 2),
    ("PREPOSITIONS", 2),
    ("MOTIONS", 3),
}


def in_dictionary(phrase: str) -> bool:
    return all(word in syllables._dictionary() for word in phrase.split())


@pytest.mark.parametrize(("table", "count"), sorted(TABLES))
def test_words_agree_with_cmudict(table, count):
    for phrase in getattr(haiku_words, table):
        assert in_dictionary(phrase), phrase
        assert syllables.line_counts(phrase) == {count}, phrase


@pytest.mark.parametrize("theme", haiku_words.THEMES, ids=lambda theme: theme.topics[0][0])
def test_themes_agree_with_cmudict(theme):
    for words, count in ((theme.one, 1), (theme.two, 2)):
        for word in words:
            assert in_dictionary(word), word
            assert syllables.counts(word) == {count}, word
    for topic, count in theme.topics:
        assert in_dictionary(topic), topic
        # cmudict also has "spring" as two syllables; the poems use the common one.
        assert count in syllables.counts(topic), topic


def test_every_poem_fits_and_holds_its_topic():
    rng = Random(0)
    for _ in range(20):
        for topic, count, theme in haiku.topics():
            poem = haiku.poem(rng, topic, count, theme)
            assert syllables.fits(poem), poem
            assert topic in poem.lower().splitlines()[0].split()
