"""Haiku by topic. Few line plans with typed slots, so that the metre is easy; many words, so that no two are alike.

The first line holds the topic:   Silent moon above / Silent river sleeps / Cold butterfly sleeps
The second has seven syllables:   over the golden water / the lonely wave drifts alone / dreaming of the frozen shore
The third has five:               stone and mist and salt / softly the wave sleeps / a hidden harbor
"""

from functools import cache
from random import Random

from data.conversation import Conversation, assistant, user
from data.synthetic.draw import chance, pick
from data.synthetic.haiku_words import (
    ADJECTIVES_ONE,
    ADJECTIVES_TWO,
    ADVERBS,
    ENDINGS_ONE,
    ENDINGS_TWO,
    MOTIONS,
    PREPOSITIONS,
    THEMES,
    VERBS,
    Theme,
)
from data.synthetic.reserve import HeldOut, reserved
from data.synthetic.wording import Wordings, casual

WORDINGS = Wordings(
    train=(
        "Write a haiku about {t}.",
        "Write me a haiku about {t}.",
        "Write a haiku about the {t}.",
        "A haiku about {t}, please.",
        "haiku about {t}",
        "Haiku: {t}",
        "Can you write a haiku about the {t}?",
        "Give me a haiku about {t}.",
        "Please write a haiku on {t}.",
        "I would like a haiku about {t}.",
        "Make a haiku about a {t}.",
    ),
    reserved=(
        "Compose a haiku about {t}.",
        "Could you write a haiku about {t}?",
        "I want a haiku about {t}.",
        "Tell me a haiku about the {t}.",
        "Please give me a haiku on {t}.",
    ),
)
NO_TOPIC = ("Write a haiku.", "Write me a haiku.", "A haiku, please.", "Give me a haiku.", "Can you write a haiku?")


@cache
def topics() -> tuple[tuple[str, int, Theme], ...]:
    """Every topic with its syllables and its theme."""
    return tuple((word, count, theme) for theme in THEMES for word, count in theme.topics)


def poem(rng: Random, topic: str, syllables: int, theme: Theme) -> str:
    """Three lines of 5, 7 and 5 syllables."""
    return f"{_first(rng, topic, syllables)}\n{_second(rng, theme)}\n{_third(rng, theme)}"


def _first(rng: Random, topic: str, syllables: int) -> str:
    if syllables == 1:
        words = pick(rng, ADJECTIVES_TWO), topic, pick(rng, ENDINGS_TWO)
    elif syllables == 2:
        words = pick(rng, ADJECTIVES_TWO), topic, pick(rng, ENDINGS_ONE)
    else:
        words = pick(rng, ADJECTIVES_ONE), topic, pick(rng, ENDINGS_ONE)
    return " ".join(words).capitalize()


def _second(rng: Random, theme: Theme) -> str:
    plan = rng.random()
    adjective = pick(rng, ADJECTIVES_TWO)
    if plan < 0.4:
        return f"{pick(rng, PREPOSITIONS)} the {adjective} {pick(rng, theme.two)}"
    if plan < 0.7:
        return f"the {adjective} {pick(rng, theme.one)} {pick(rng, VERBS)} {pick(rng, ENDINGS_TWO)}"
    return f"{pick(rng, MOTIONS)} the {adjective} {pick(rng, theme.one)}"


def _third(rng: Random, theme: Theme) -> str:
    plan = rng.random()
    if plan < 0.4:
        return " and ".join(_different(rng, theme.one, 3))
    if plan < 0.7:
        return f"{pick(rng, ADVERBS)} the {pick(rng, theme.one)} {pick(rng, VERBS)}"
    return f"a {pick(rng, ADJECTIVES_TWO)} {pick(rng, theme.two)}"


def _different(rng: Random, words: tuple[str, ...], count: int) -> list[str]:
    """`count` of the words, none twice."""
    found: list[str] = []
    while len(found) < count:
        word = pick(rng, words)
        if word not in found:
            found.append(word)
    return found


def _phrase_reserved(wording: str, topic: str) -> bool:
    """A fifth of the pairs of a taught wording and a topic are kept for the evaluation, too."""
    return reserved("haiku", wording, topic, one_in=5)


def chat(rng: Random) -> Conversation:
    topic, syllables, theme = pick(rng, topics())
    if chance(rng, 0.06):
        return user(casual(rng, pick(rng, NO_TOPIC))), assistant(poem(rng, topic, syllables, theme))
    while _phrase_reserved(wording := pick(rng, WORDINGS.train), topic):
        pass
    return user(casual(rng, wording.format(t=topic))), assistant(poem(rng, topic, syllables, theme))


def line(rng: Random) -> str:
    """A title and the poem."""
    topic, syllables, theme = pick(rng, topics())
    return f"On the {topic}\n{poem(rng, topic, syllables, theme)}"


def held_out(rng: Random) -> HeldOut:
    topic, _, _ = pick(rng, topics())
    while (wording := pick(rng, WORDINGS.all)) in WORDINGS.train and not _phrase_reserved(wording, topic):
        pass
    return HeldOut((user(casual(rng, wording.format(t=topic))),), topic, {"topic": topic})
