"""The evaluation asks what training never showed: operands, wordings, names and phrases are kept apart."""

import re
from functools import cache
from random import Random

import pytest

from data.synthetic import arithmetic, corpus, equations, facts, greetings, haiku, names, unknown, word_problems
from data.synthetic.wording import Wordings, normalise

KINDS = corpus.KINDS
DOCUMENTS = 60_000


def prompt_of(messages) -> str:
    """All that the user said, the form in which prompts are compared."""
    return normalise(" | ".join(message.text for message in messages if message.role == "user"))


@cache
def training_prompts() -> frozenset[str]:
    """What users say in training: each turn alone, and the turns so far, for every turn of every chat."""
    found = set()
    for name in ("chats", "smoke_chats"):
        for document in corpus.BUILTIN[name](DOCUMENTS, 0):
            users = [message.text for message in document.content if message.role == "user"]
            found.update(normalise(text) for text in users)
            found.update(normalise(" | ".join(users[: end + 1])) for end in range(len(users)))
    return frozenset(found)


@cache
def plain_lines() -> frozenset[str]:
    """What stands before the answer in plain documents: everything up to each `?`, `.` or line end, normalised."""
    found = set()
    for name in ("documents", "smoke_documents"):
        for document in corpus.BUILTIN[name](DOCUMENTS, 0):
            pieces = re.split(r"(?<=[?.=])\s|\n", document.content)
            for end in range(len(pieces)):
                found.add(normalise(" ".join(pieces[: end + 1])))
                found.add(normalise(pieces[end]))
    return frozenset(found)


@pytest.mark.parametrize("kind", KINDS)
def test_no_evaluation_prompt_occurs_in_training(kind):
    prompts = {prompt_of(item.messages) for item in corpus.held_out(kind, 1500, 3)}
    assert prompts.isdisjoint(training_prompts())
    assert prompts.isdisjoint(plain_lines())


@pytest.mark.parametrize("kind", KINDS)
def test_there_are_500_different_prompts_and_the_seed_picks_them(kind):
    first = corpus.held_out(kind, 500, 1)
    assert len({item.messages for item in first}) == 500
    assert first == corpus.held_out(kind, 500, 1)
    if kind != "greetings":  # a fixed list
        assert first != corpus.held_out(kind, 500, 2)


def test_reserved_sums_occur_in_no_training_text():
    """Not as prompts, not as a step of anything, in either order."""
    rng = Random(5)
    for subject in ("add_2digit", "sub_2digit", "word_problem", "equation", "division", "names"):
        for _ in range(4000):
            texts = [message.text for message in corpus.SUBJECTS[subject].chat(rng)]
            texts.append(corpus.SUBJECTS[subject].line(rng))
            for text in texts:
                for left, sign, right in re.findall(r"(?<!\d)(\d+) ?([-+]) ?(\d+)(?!\d)", text):
                    a, b = int(left), int(right)
                    assert not arithmetic.sum_reserved(sign, a, b), text


def test_every_other_pair_of_two_digits_is_taught():
    """The share of pairs that training never draws is the reserved tenth."""
    rng, seen = Random(1), set()
    for _ in range(60_000):
        seen.add(arithmetic.draw_addition(rng, held_out=False))
    pairs = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    reserved = [pair for pair in pairs if arithmetic.sum_reserved("+", *pair)]
    assert 0.06 < len(reserved) / len(pairs) < 0.1  # a tenth of those with no multiple of ten
    assert len(seen.intersection(pairs)) > 0.98 * (len(pairs) - len(reserved))
    assert seen.isdisjoint(reserved)


def test_held_out_operands_are_the_reserved_ones():
    rng = Random(2)
    for _ in range(2000):
        assert arithmetic.sum_reserved("+", *arithmetic.draw_addition(rng, held_out=True))
        assert arithmetic.sum_reserved("-", *arithmetic.draw_subtraction(rng, held_out=True))
        assert arithmetic.division_reserved(*arithmetic.draw_division(rng, held_out=True))
        assert not arithmetic.division_reserved(*arithmetic.draw_division(rng, held_out=False))
        assert equations.is_reserved(*equations.draw(rng, held_out=True))
        assert not equations.is_reserved(*equations.draw(rng, held_out=False))


def all_wordings() -> dict[str, Wordings]:
    subjects = {
        "add": arithmetic.ADD,
        "subtract": arithmetic.SUBTRACT,
        "times": arithmetic.TIMES,
        "divide": arithmetic.DIVIDE,
        "equation": equations.WORDINGS,
        "haiku": haiku.WORDINGS,
        "tell": names.TELL,
        "ask": names.ASK,
        "person": unknown.PERSON,
    }
    subjects |= {f"story {sign}": wordings for sign, wordings in word_problems.KINDS.items()}
    return subjects | {name: relation.wordings for name, relation in facts.RELATIONS.items()}


@pytest.mark.parametrize(("name", "wordings"), all_wordings().items(), ids=list(all_wordings()))
def test_each_subject_has_enough_wordings_and_the_sides_differ(name, wordings):
    assert len(wordings.train) >= 6
    assert len(wordings.reserved) >= 3
    letters = [{re.sub(r"[^a-z]", "", text.lower()) for text in side} for side in (wordings.train, wordings.reserved)]
    assert letters[0].isdisjoint(letters[1]), "a reserved wording differs from a taught one in signs only"


@pytest.mark.parametrize("name", all_wordings())
def test_reserved_wordings_are_new_combinations_of_known_words(name):
    """Unseen words would be guesswork."""
    known = {word for wordings in all_wordings().values() for text in wordings.train for word in words_of(text)}
    for text in all_wordings()[name].reserved:
        new = set(words_of(text)) - known
        assert not new or name == "haiku", (text, new)


def words_of(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def test_names_and_places_are_kept_apart():
    rng = Random(3)
    taught = {names.draw_name(rng, held_out=False) for _ in range(20_000)}
    asked = {names.draw_name(rng, held_out=True) for _ in range(2000)}
    assert len(taught) > 5000
    assert len(asked) > 800
    assert taught.isdisjoint(asked)
    places = {unknown._place(rng, held_out=False) for _ in range(5000)}
    assert places.isdisjoint(unknown._place(rng, held_out=True) for _ in range(1000))
    assert places.isdisjoint(key for name, key, _ in facts.all_facts() if name == "capital")


def test_the_greetings_are_a_fixed_list_whatever_the_seed():
    assert corpus.held_out("greetings", 600, 1) == corpus.held_out("greetings", 600, 2) == greetings.fixed_list()
    markers = {item.extra["marker"] for item in greetings.fixed_list()}
    assert len(markers) == len(greetings.INTENTS)
