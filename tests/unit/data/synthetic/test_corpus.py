"""The built-in corpus: deterministic, right in what it says, in the shares of its table."""

import os
import re
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from itertools import islice
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.calculator import evaluate
from data.conversation import assistant, user
from data.synthetic import arithmetic, corpus, equations, facts, haiku, word_problems
from data.synthetic.wording import casual, normalise

EQUATION = re.compile(r"(?<![\w.])(\d+(?: [-+×/*] \d+)+) = (-?\d+)")


def texts(document):
    if isinstance(document.content, str):
        return [document.content]
    return [message.text for message in document.content]


@pytest.mark.parametrize("name", corpus.BUILTIN)
def test_a_document_depends_on_seed_and_index_alone(name):
    few, many = list(corpus.BUILTIN[name](20, 4)), list(corpus.BUILTIN[name](200, 4))
    assert many[:20] == few
    assert len(many) == 200
    assert many != list(corpus.BUILTIN[name](200, 5))
    assert all(document.source == f"builtin:{name}" for document in many)
    assert all(document.is_chat == name.endswith("chats") for document in many)


def test_another_process_generates_the_same():
    """Sets and hashes differ from process to process; documents must not."""
    code = (
        "from data.synthetic import corpus; "
        "print([list(corpus.BUILTIN[name](150, 3)) for name in corpus.BUILTIN], "
        "[corpus.held_out(kind, 20, 1) for kind in corpus.KINDS])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.curdir},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1
    rng = Random(1)  # Python guarantees this sequence
    assert [round(rng.random(), 6) for _ in range(2)] == [0.134364, 0.847434]


def test_chats_alternate_and_end_with_the_assistant():
    for document in corpus.BUILTIN["chats"](3000, 1):
        roles = [message.role for message in document.content]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        for message in document.content:
            assert message.text.strip() == message.text != ""
            kinds = [part.kind for part in message.parts]
            assert kinds in (["text"], ["calculator", "output", "text"])
            if message.role == "assistant" and len(kinds) == 3:
                expression, output, text = (part.text for part in message.parts)
                assert evaluate(expression) == output
                assert text == f"The answer is {output}."


def test_every_sum_in_the_corpus_is_right():
    checked = 0
    for name in ("documents", "chats"):
        for document in corpus.BUILTIN[name](6000, 2):
            for text in texts(document):
                for left, result in EQUATION.findall(text):
                    whole = evaluate(left.replace("×", "*"))
                    rest = re.search(re.escape(f"{left} = {result}") + r" remainder (\d+)", text)
                    if rest:
                        a, b = map(int, left.split(" / "))
                        assert (int(result), int(rest[1])) == divmod(a, b)
                    else:
                        assert Fraction(whole) == int(result), text
                    checked += 1
    assert checked > 10_000


@given(st.integers(0, 99), st.integers(0, 99))
def test_steps_lead_to_the_sum_and_the_difference(a, b):
    assert arithmetic.add_steps(a, b)[-1] == ("+", a, b, a + b)
    a, b = max(a, b), min(a, b)
    steps = arithmetic.subtract_steps(a, b)
    assert steps[-1] == ("-", a, b, a - b)
    assert all(result >= 0 for *_, result in steps)


@given(st.integers(2, 9), st.integers(1, 99), st.integers(0, 8))
def test_long_division_is_right(b, quotient, remainder):
    a = b * quotient + min(remainder, b - 1)
    steps, whole, rest = arithmetic.divide_steps(a, b)
    assert (whole, rest) == divmod(a, b)
    for sign, left, right, result in steps:
        assert result == (left * right if sign == "×" else left - right)
    assert sum(right for sign, _, right, _ in steps if sign == "×") == whole


def test_the_examples_of_the_texts():
    assert arithmetic.write(arithmetic.add_steps(63, 29)) == "60 + 20 = 80, 3 + 9 = 12, so 63 + 29 = 92."
    assert arithmetic.write(arithmetic.subtract_steps(63, 29)) == "63 - 20 = 43, 43 - 9 = 34, so 63 - 29 = 34."
    division = "3 × 20 = 60, 85 - 60 = 25, 3 × 8 = 24, 25 - 24 = 1, so 85 / 3 = 28 remainder 1."
    assert arithmetic.write_division(85, 3) == division
    assert equations.equation("+", 5, 3, 2) == "5x + 3 = 13"
    assert equations.solution("+", 5, 3, 2) == "5x = 13 - 3 = 10, x = 10 / 5, so x = 2."
    assert word_problems.answer("-", 9, 4, "pens") == "9 - 4 = 5 pens."


@given(st.integers(0, 10**6))
def test_equations_have_the_solution_they_are_given(seed):
    sign, a, b, x = equations.draw(Random(seed), held_out=bool(seed % 2))
    left, right = equations.equation(sign, a, b, x).split(" = ")
    factor = left.split("x")[0] or "1"
    assert evaluate(f"{factor} * {x} {sign} {b}") == right
    assert equations.solution(sign, a, b, x).endswith(f"so x = {x}.")


def test_shares_are_those_of_the_table():
    rng = Random(0)
    counts = Counter(corpus._subject("chats", rng) for _ in range(40_000))
    total = sum(row["chats"] for row in corpus.SHARES.values())
    for name, row in corpus.SHARES.items():
        assert counts[name] / 40_000 == pytest.approx(row["chats"] / total, abs=0.01)
    assert total == sum(row["documents"] for row in corpus.SHARES.values()) == 100


def test_smoke_teaches_every_fact_and_sums_by_calculator_only():
    taught = set()
    for document in corpus.BUILTIN["smoke_documents"](6000, 0):
        taught.update(re.findall(r"[A-Z][^.?]*\.", document.content))
    answers = {facts._answer(*fact) for fact in facts.all_facts()}
    assert len(answers) >= 250
    assert answers <= taught


def test_a_fact_has_one_answer():
    keys = Counter((name, key) for name, key, _ in facts.all_facts())
    assert not [key for key, count in keys.items() if count > 1]


def test_poems_are_all_the_haiku_of_the_corpora():
    sources = [("documents", 3000, 1), ("chats", 3000, 2)]
    found = list(corpus.poems(sources))
    expected = []
    for name, count, seed in sources:
        for document in corpus.BUILTIN[name](count, seed):
            for text in texts(document):
                if text.startswith("On the "):
                    expected.append(text.split("\n", 1)[1])
                elif text.count("\n") == 2 and not isinstance(document.content, str):
                    expected.append(text)
    assert found == expected
    assert len(found) > 300
    assert list(islice(corpus.poems([("no such corpus", 5, 0)]), 1)) == []


def test_haiku_hardly_ever_share_a_line():
    lines = Counter(line for poem in corpus.poems([("chats", 20_000, 0)]) for line in poem.lower().splitlines())
    assert sum(count for count in lines.values() if count == 1) > 0.5 * sum(lines.values())
    assert len(haiku.topics()) >= 40


@given(st.integers(0, 10**6), st.text(alphabet="abcXYZ ?.,'12+", min_size=1, max_size=30))
def test_casual_typing_changes_no_meaning(seed, text):
    assert normalise(casual(Random(seed), text)) == normalise(text)


def test_forty_percent_are_typed_casually():
    rng, text = Random(3), "What is the capital of France?"
    counts = Counter(casual(rng, text) for _ in range(10_000))
    assert counts[text] / 10_000 == pytest.approx(0.6, abs=0.02)
    assert set(counts) == {text, text.lower(), text[:-1], text.lower()[:-1]}
    assert casual(Random(1), "I am Zo.", keep="Zo").count("Zo") == 1


def test_a_calculation_the_calculator_refuses_is_an_error():
    with pytest.raises(ValueError, match="refuses"):
        arithmetic.calculate("1 / 0")


def test_the_calculators_turn_is_made_of_three_parts():
    turn = arithmetic.calculator_reply("347 + 589", "936")
    assert [part.kind for part in turn.parts] == ["calculator", "output", "text"]
    assert turn.text == "The answer is 936."
    assert user("x").role == "user" and assistant("x").role == "assistant"
