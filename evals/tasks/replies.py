"""The tasks with one right answer each: sums, facts, greetings, names, and what nobody knows."""

from collections.abc import Callable

from data.synthetic import corpus
from data.synthetic.reserve import HeldOut
from evals.task import Item, Task
from evals.tasks import grading
from evals.tasks.grading import Grade


def _number(item: HeldOut) -> Grade:
    return grading.final_number(item.answer)


def _fact(item: HeldOut) -> Grade:
    """The answer as whole words; a number as a number."""
    return _number(item) if item.answer.isdigit() else grading.holds(item.answer)


JUDGES: dict[str, Callable[[HeldOut], Grade]] = {
    "add_2digit": _number,
    "sub_2digit": _number,
    "equation": _number,
    "word_problem": _number,
    "division": lambda item: grading.quotient(item.answer),
    "times_table": _number,
    "calculator": _number,
    "questions": _fact,
    "greetings": lambda item: grading.holds(item.extra["marker"]),
    "names": lambda item: grading.holds(item.answer),
    "unknown": lambda item: grading.holds("do not know"),
}


def task(name: str) -> Task:
    """The greedy task called `name`."""

    def items(n: int, seed: int) -> list[Item]:
        return [Item(item.messages, JUDGES[name](item), item.answer) for item in corpus.held_out(name, n, seed)]

    return Task(name, 0.0, items)
