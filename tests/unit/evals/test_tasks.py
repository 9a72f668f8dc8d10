"""The tasks: a right reply passes, a wrong one does not, and a run counts and samples them."""

import pytest

from data.conversation import Part
from data.synthetic import corpus
from data.synthetic.draw import listed
from evals import generative
from evals.config import TASK_NAMES
from evals.task import Item, Task
from evals.tasks import haiku, registry

ORDER = listed(
    "add_2digit sub_2digit equation word_problem division times_table calculator questions greetings names unknown "
    "haiku_575 haiku_topic haiku_novel"
)
KNOWN = ["Old moon\nover the hill\nsoft light"]


def tasks():
    return registry.tasks(lambda: KNOWN)


def test_the_registry_holds_the_tasks_in_order():
    assert tuple(registry.TASKS) == tuple(tasks()) == ORDER == TASK_NAMES
    assert {task.temperature for name, task in registry.TASKS.items() if name.startswith("haiku")} == {0.5}
    assert {task.temperature for name, task in registry.TASKS.items() if not name.startswith("haiku")} == {0.0}


def test_novelty_without_the_training_poems_is_an_error():
    with pytest.raises(ValueError, match="training poems"):
        registry.TASKS["haiku_novel"].items(5, 0)


@pytest.mark.parametrize("name", ORDER[:11])
def test_the_right_answer_passes_and_another_does_not(name):
    items = tasks()[name].items(60, 1)
    assert len(items) == 60
    assert items == items and [i.messages for i in items] == [i.messages for i in tasks()[name].items(60, 1)]
    wrong = "Sorry, 123456 remainder 654321 penguins."
    for item in items:
        said = f"That is known: {item.answer}."
        assert item.messages[-1].role == "user"
        assert item.grade(said), item
        assert not item.grade(wrong), item
        assert not item.grade(""), item


POEM = "Silent moon above\nover the golden water\nstone and mist and salt"


def test_the_three_judges_of_a_haiku():
    assert haiku.metre(POEM)
    assert not haiku.metre(POEM.replace("golden", "gold"))
    assert haiku.on_topic(POEM, "moon")
    assert not haiku.on_topic(POEM, "moo")
    assert not haiku.on_topic("moon", "moon")


def test_novelty_counts_lines_shared_with_one_poem():
    known = haiku.Known([POEM, "Cold river sleeps\nthe lonely wave drifts alone\na hidden harbor"])
    assert known.most_shared(POEM.upper().replace("\n", "!\n")) == 3
    mixed = "Silent moon above\nthe lonely wave drifts alone\na new golden hill"  # one line of each
    assert known.most_shared(mixed) == 1
    assert haiku.is_new(mixed, known)
    copied = "Silent moon above\nover the golden water\na new golden hill"
    assert known.most_shared(copied) == 2
    assert not haiku.is_new(copied, known)
    assert not haiku.is_new("not a poem", known)
    assert haiku.Known([]).most_shared(POEM) == 0


def test_training_poems_are_read_once_and_only_for_novelty():
    calls = []

    def poems():
        calls.append(1)
        return corpus.poems([("chats", 500, 0)])

    made = registry.tasks(poems)
    made["haiku_575"].items(3, 0)
    assert not calls
    made["haiku_novel"].items(3, 0)
    made["haiku_novel"].items(3, 1)
    assert len(calls) == 1
    training = next(iter(corpus.poems([("chats", 500, 0)])))
    assert not made["haiku_novel"].items(1, 0)[0].grade(training)


def answering(replies):
    return lambda conversations, temperature, seed: [replies] * len(conversations)


def test_a_run_counts_and_shows_samples():
    task = tasks()["calculator"]
    items = task.items(30, 0)

    def respond(conversations, temperature, seed):
        assert temperature == 0.0 and seed == 0
        found = []
        for index, item in enumerate(items):
            text = f"The answer is {item.answer}." if index % 3 else "The answer is 0."
            found.append((Part("calculator", "1 + 2"), Part("output", "3"), Part("text", text)))
        return found

    result = generative.run(task, respond, 30, 0)
    assert result["share"] == pytest.approx(20 / 30)
    assert result["n"] == 30 and result["temperature"] == 0.0
    assert len(result["samples"]) == 20
    assert {"prompt", "reply", "answer", "correct"} == set(result["samples"][0])
    assert 0 < sum(not sample["correct"] for sample in result["samples"]) <= 10
    assert result["samples"][0]["reply"].startswith("[1 + 2 = 3] The answer is")


def test_only_the_text_is_judged_not_what_the_calculator_said():
    item = Item(tasks()["calculator"].items(1, 0)[0].messages, lambda reply: reply == "none", "none")
    task = Task("one", 0.0, lambda n, seed: [item])
    reply = (Part("calculator", "1 + 1"), Part("output", "2"), Part("text", " none "))
    assert generative.run(task, answering(reply), 1, 0)["share"] == 1.0


def test_wrong_numbers_of_replies_or_no_items_are_errors():
    task = tasks()["names"]
    with pytest.raises(ValueError, match="replies"):
        generative.run(task, lambda c, t, s: [], 5, 0)
    with pytest.raises(ValueError, match="no items"):
        generative.run(task, answering(()), 0, 0)


def test_tasks_with_the_same_prompts_share_replies():
    calls = []

    def respond(conversations, temperature, seed):
        calls.append(len(conversations))
        return [(Part("text", POEM),)] * len(conversations)

    shared = generative.remembered(respond)
    results = {name: generative.run(tasks()[name], shared, 12, 1) for name in ORDER[-3:]}
    assert calls == [12]
    assert results["haiku_575"]["share"] == results["haiku_novel"]["share"] == 1.0
    assert results["haiku_topic"]["share"] < 1.0
    generative.run(tasks()["haiku_575"], shared, 12, 2)
    assert calls == [12, 12]
