"""Questions on facts: every fact is taught, in several wordings and as plain statements; some wordings are kept."""

from dataclasses import dataclass
from functools import cache
from random import Random

from data.conversation import Conversation, assistant, user
from data.synthetic import fact_tables as tables
from data.synthetic.draw import between, chance, pick
from data.synthetic.reserve import HeldOut
from data.synthetic.wording import Wordings, ask, compose

Pairs = tuple[tuple[str, str], ...]

# `the capital of {k}`, `what a {k} says`, `what does a {k} say` are asked in these frames.
_NOUN = (
    "@",
    "@ is",
    "What is @?",
    "What's @?",
    "Tell me @.",
    "Please tell me @.",
    "Can you tell me @?",
    "Do you know @?",
    "I want to know @.",
    "Name @.",
    "Please name @.",
    "Give me @.",
)
_CLAUSE = ("Tell me @.", "Please tell me @.", "Can you tell me @?", "Do you know @?", "I want to know @.")
_QUESTION = ("@?", "Tell me, @?", "A question: @?", "Please, @?")


@dataclass(frozen=True)
class Relation:
    """One kind of fact: its pairs of key `k` and value `v`, the one form of the answer, and how it is asked."""

    pairs: Pairs
    answer: str
    wordings: Wordings


def _relation(
    name: str,
    pairs: Pairs,
    answer: str,
    nouns: tuple[str, ...] = (),
    questions: tuple[str, ...] = (),
    clauses: tuple[str, ...] = (),
) -> Relation:
    wordings = compose(name, (_NOUN, nouns), (_QUESTION, questions), (_CLAUSE, clauses), one_in=3)
    return Relation(pairs, answer, wordings)


def _both_ways(pairs: Pairs) -> Pairs:
    return pairs + tuple((right, left) for left, right in pairs)


def _ring(names: tuple[str, ...], step: int) -> Pairs:
    """Each name and the one `step` places on, around the end."""
    return tuple((name, names[(index + step) % len(names)]) for index, name in enumerate(names))


RELATIONS: dict[str, Relation] = {
    "capital": _relation(
        "capital",
        tables.CAPITALS,
        "The capital of {k} is {v}.",
        nouns=("the capital of {k}", "the capital city of {k}"),
        questions=("which city is the capital of {k}", "what city is the capital of {k}"),
    ),
    "language": _relation(
        "language",
        tables.LANGUAGES,
        "People in {k} speak {v}.",
        nouns=("the language of {k}",),
        questions=("what language do people speak in {k}", "which language is spoken in {k}"),
        clauses=("what language people speak in {k}", "which language is spoken in {k}"),
    ),
    "opposite": _relation(
        "opposite",
        _both_ways(tables.OPPOSITES),
        "The opposite of {k} is {v}.",
        nouns=("the opposite of {k}", "the opposite word of {k}"),
        questions=("which word is the opposite of {k}",),
    ),
    "colour": _relation(
        "colour",
        tables.COLOURS,
        "The colour of {k} is {v}.",
        nouns=("the colour of {k}", "the color of {k}"),
        questions=("what colour is {k}", "what color is {k}", "which colour does {k} have"),
        clauses=("what colour {k} is", "which colour {k} has"),
    ),
    "sound": _relation(
        "sound",
        tables.SOUNDS,
        "A {k} says {v}.",
        nouns=("the sound of a {k}",),
        questions=("what does a {k} say", "what sound does a {k} make", "which sound does a {k} make"),
        clauses=("what a {k} says", "what sound a {k} makes"),
    ),
    "young": _relation(
        "young",
        tables.YOUNG,
        "A young {k} is called a {v}.",
        nouns=("the name for a young {k}", "the name for a baby {k}"),
        questions=("what is a young {k} called", "what is a baby {k} called", "what do you call a young {k}"),
        clauses=("what a young {k} is called", "what a baby {k} is called"),
    ),
    "home": _relation(
        "home",
        tables.HOMES,
        "A {k} lives in a {v}.",
        nouns=("the home of a {k}",),
        questions=("where does a {k} live", "where is the home of a {k}"),
        clauses=("where a {k} lives", "where the home of a {k} is"),
    ),
    "legs": _relation(
        "legs",
        tables.LEGS,
        "A {k} has {v} legs.",
        nouns=("the number of legs of a {k}",),
        questions=("how many legs does a {k} have", "how many legs has a {k}"),
        clauses=("how many legs a {k} has",),
    ),
    "plural": _relation(
        "plural",
        tables.PLURALS,
        "The plural of {k} is {v}.",
        nouns=("the plural of {k}", "the plural form of {k}"),
        questions=("which word is the plural of {k}",),
    ),
    "past": _relation(
        "past",
        tables.PASTS,
        "The past tense of {k} is {v}.",
        nouns=("the past tense of {k}", "the past of {k}"),
        questions=("which word is the past tense of {k}",),
    ),
    "maker": _relation(
        "maker",
        tables.MAKERS,
        "A {v} makes {k}.",
        questions=("who makes {k}", "who is it that makes {k}"),
        clauses=("who makes {k}", "who it is that makes {k}"),
    ),
    "material": _relation(
        "material",
        tables.MATERIALS,
        "They make {k} from {v}.",
        questions=("what is {k} made of", "what is {k} made from", "what do they make {k} from"),
        clauses=("what {k} is made of", "what {k} is made from"),
    ),
    "sides": _relation(
        "sides",
        tables.SIDES,
        "A {k} has {v} sides.",
        nouns=("the number of sides of a {k}",),
        questions=("how many sides does a {k} have", "how many sides has a {k}"),
        clauses=("how many sides a {k} has",),
    ),
    "count": _relation(
        "count",
        tables.COUNTS,
        "There are {v} {k}.",
        nouns=("the number of {k}",),
        questions=("how many {k} are there", "how many {k}"),
        clauses=("how many {k} there are",),
    ),
    "after": _relation(
        "after",
        _ring(tables.DAYS, 1) + _ring(tables.MONTHS, 1),
        "After {k} comes {v}.",
        questions=("what comes after {k}", "which one comes after {k}", "what is next after {k}"),
        clauses=("what comes after {k}", "what is next after {k}"),
    ),
    "before": _relation(
        "before",
        _ring(tables.DAYS, -1) + _ring(tables.MONTHS, -1),
        "Before {k} comes {v}.",
        questions=("what comes before {k}", "which one comes before {k}", "what is just before {k}"),
        clauses=("what comes before {k}", "what is just before {k}"),
    ),
}


def _article(text: str) -> str:
    """`a` before a vowel becomes `an`: the tables' words have no exception to the letter."""
    for vowel in "aeiou":
        text = text.replace(f" a {vowel}", f" an {vowel}").replace(f"A {vowel}", f"An {vowel}")
    return text


@cache
def all_facts() -> tuple[tuple[str, str, str], ...]:
    """Every fact as (relation, key, value), in a fixed order."""
    return tuple((name, key, value) for name, relation in RELATIONS.items() for key, value in relation.pairs)


@cache
def _answer(name: str, key: str, value: str) -> str:
    return _article(RELATIONS[name].answer.format(k=key, v=value))


def _question(rng: Random, wordings: tuple[str, ...], key: str) -> str:
    return _article(ask(rng, wordings, k=key))


def chat(rng: Random) -> Conversation:
    name, key, value = pick(rng, all_facts())
    return user(_question(rng, RELATIONS[name].wordings.train, key)), assistant(_answer(name, key, value))


def line(rng: Random) -> str:
    """One to three facts as statements, or one with its question."""
    if chance(rng, 0.4):
        name, key, value = pick(rng, all_facts())
        question = _article(pick(rng, RELATIONS[name].wordings.train).format(k=key))
        return f"{question} {_answer(name, key, value)}"
    return " ".join(_answer(*pick(rng, all_facts())) for _ in range(between(rng, 1, 3)))


def held_out(rng: Random) -> HeldOut:
    """A fact that was taught, asked in words that were not."""
    name, key, value = pick(rng, all_facts())
    question = _question(rng, RELATIONS[name].wordings.reserved, key)
    return HeldOut((user(question),), value, {"relation": name, "key": key})
