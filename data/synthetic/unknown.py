"""What nobody taught it: made-up places and people, the future, private matters. The one answer: I do not know.

Places and people are made of syllables; some of them are kept for the evaluation, as is a fifth of the
combinations of the other questions.
"""

from functools import cache
from itertools import product
from random import Random

from data.conversation import Conversation, assistant, user
from data.synthetic import facts
from data.synthetic.draw import chance, pick
from data.synthetic.people import COMMON, family_name, made_up
from data.synthetic.reserve import HeldOut, is_reserved, reserved
from data.synthetic.wording import Wordings, casual, compose

ANSWER = "I do not know."

# On places, besides all that is asked of real ones.
PLACE = Wordings(
    train=(
        "Who is the king of {p}?",
        "How many people live in {p}?",
        "Where is {p}?",
        "What is {p} famous for?",
        "How far is it to {p}?",
    ),
    reserved=(
        "Who is the queen of {p}?",
        "Do you know where {p} is?",
        "Tell me where {p} is.",
    ),
)
PERSON = compose(
    "person",
    (
        ("@?", "Tell me, @?", "Please, @?"),
        (
            "who is {p}",
            "how old is {p}",
            "how tall is {p}",
            "where does {p} live",
            "where does {p} work",
            "what does {p} do",
            "when was {p} born",
            "where was {p} born",
        ),
    ),
    (
        ("Tell me @.", "Please tell me @.", "Can you tell me @?", "Do you know @?"),
        ("who {p} is", "how old {p} is", "where {p} lives", "what {p} does", "when {p} was born"),
    ),
)
# Each pattern with the words of its slots; every combination is one question.
PATTERNS: tuple[tuple[str, tuple[tuple[str, ...], ...]], ...] = (
    (
        "Who will win {} {}?",
        (
            ("the race", "the game", "the match", "the election", "the cup", "the prize"),
            ("tomorrow", "next week", "next month", "next year", "in the end"),
        ),
    ),
    (
        "Will it {} {} {}?",
        (
            ("rain", "snow", "be hot", "be cold", "be windy", "be sunny"),
            ("here", "in the city", "at my house", "in the hills"),
            ("tomorrow", "next week", "on Sunday", "tonight"),
        ),
    ),
    (
        "What did {} {} {}?",
        (
            ("I", "my sister", "my brother", "my friend", "my mother", "my father", "my boss"),
            ("eat", "buy", "dream", "say", "read", "lose"),
            ("today", "yesterday", "last night", "last week"),
        ),
    ),
    (
        "What is the {} of my {}?",
        (
            ("name", "age", "favourite colour", "birthday", "phone number", "favourite song"),
            ("sister", "brother", "cat", "dog", "mother", "father", "teacher", "friend", "boss", "neighbour"),
        ),
    ),
    (
        "Where {} my {}?",
        (
            ("is", "did I put", "did I leave", "can I find"),
            ("keys", "phone", "book", "hat", "bag", "coat", "pen", "glasses", "ring", "shoes"),
        ),
    ),
    (
        "What will {} {} {}?",
        (
            ("happen", "I do", "the news be", "the price be", "I dream", "the weather be"),
            ("tomorrow", "next week", "next year", "on Monday"),
            ("", "at noon", "in the evening"),
        ),
    ),
    (
        "How many {} are in {}?",
        (
            ("coins", "people", "birds", "stones", "letters", "mice"),
            ("my pocket", "my house", "my garden", "my bag", "my street", "this room"),
        ),
    ),
    (
        "What {} is it {}?",
        (("time", "day", "date", "year"), ("now", "right now", "at this moment", "today", "here")),
    ),
    (
        "Why {} {} {}?",
        (
            ("is", "was"),
            ("my sister", "my brother", "my friend", "my cat", "my boss", "my teacher"),
            ("angry", "sad", "late", "tired", "happy", "sick"),
        ),
    ),
)
_NO_NAME = ("What is my name?", "Who am I?", "Do you know my name?", "Tell me my name.")


def _place(rng: Random, held_out: bool) -> str:
    """A country that does not exist: Zorvania, Mildland."""
    while True:
        stem = made_up(rng, held_out=False).rstrip("aeiouy")
        name = stem + pick(rng, ("ia", "land", "stan", "ania", "or"))
        if len(stem) > 2 and is_reserved("place", name) == held_out:
            return name


@cache
def _questions(held_out: bool) -> tuple[tuple[str, ...], ...]:
    """For each pattern its questions on one side."""
    return tuple(
        tuple(
            " ".join(pattern.format(*words).replace(" ?", "?").split())
            for words in product(*slots)
            if reserved("unknown", pattern, *words, one_in=5) == held_out
        )
        for pattern, slots in PATTERNS
    )


def _draw(rng: Random, held_out: bool) -> str:
    kind = rng.random()
    if kind < 0.35:
        known = facts.RELATIONS[pick(rng, ("capital", "capital", "language"))].wordings
        wordings = PLACE if chance(rng, 0.4) else known
        place = _place(rng, held_out)
        return pick(rng, wordings.all if held_out else wordings.train).format(p=place, k=place)
    if kind < 0.55:
        name = f"{pick(rng, COMMON)} {family_name(rng, held_out)}"
        return pick(rng, PERSON.all if held_out else PERSON.train).format(p=name)
    if kind < 0.6 and not held_out:
        return pick(rng, _NO_NAME)
    return pick(rng, pick(rng, _questions(held_out)))


def chat(rng: Random) -> Conversation:
    return user(casual(rng, _draw(rng, held_out=False))), assistant(ANSWER)


def line(rng: Random) -> str:
    return f"{_draw(rng, held_out=False)} {ANSWER}"


def held_out(rng: Random) -> HeldOut:
    return HeldOut((user(casual(rng, _draw(rng, held_out=True))),), ANSWER)
