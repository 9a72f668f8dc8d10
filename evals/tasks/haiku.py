"""Is it a haiku, is it on the topic, and is it new? Three judges of the same poems, sampled at temperature 0.5."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from functools import cache

from data.synthetic import corpus
from evals import syllables
from evals.task import Item, Task
from evals.tasks.grading import words

TEMPERATURE = 0.5
Poems = Callable[[], Iterable[str]]


def _lines(poem: str) -> list[tuple[str, ...]]:
    """The lines as tuples of words: case and punctuation aside."""
    return [tuple(found) for line in poem.splitlines() if (found := words(line))]


def metre(poem: str) -> bool:
    """Five, seven and five syllables, by cmudict."""
    return syllables.fits(poem)


def on_topic(poem: str, topic: str) -> bool:
    """Three lines, and the topic is a word of one of them."""
    lines = _lines(poem)
    return len(lines) == 3 and any(topic.lower() in line for line in lines)


class Known:
    """The training poems by line, to count how many lines a new poem shares with any one of them."""

    def __init__(self, poems: Iterable[str]):
        self._poems_with: dict[tuple[str, ...], set[int]] = defaultdict(set)
        self.size = 0
        for poem in poems:
            for line in _lines(poem):
                self._poems_with[line].add(self.size)
            self.size += 1

    def most_shared(self, poem: str) -> int:
        """The largest number of different lines that `poem` has in common with one training poem."""
        shared: Counter[int] = Counter()
        for line in set(_lines(poem)):
            shared.update(self._poems_with.get(line, ()))
        return max(shared.values(), default=0)


def is_new(poem: str, known: Known) -> bool:
    """Three lines, and at most one of them in common with any training poem."""
    return len(_lines(poem)) == 3 and known.most_shared(poem) <= 1


def tasks(training_poems: Poems) -> list[Task]:
    """The three tasks. `training_poems` gives every poem of the training data; it is called once, when needed."""
    known = cache(lambda: Known(training_poems()))

    def items(n: int, seed: int, judge: Callable[[str], Callable[[str], bool]]) -> list[Item]:
        return [Item(h.messages, judge(h.answer), h.answer) for h in corpus.held_out("haiku", n, seed)]

    def novel_items(n: int, seed: int) -> list[Item]:
        poems = known()
        return items(n, seed, lambda topic: lambda reply: is_new(reply, poems))

    return [
        Task("haiku_575", TEMPERATURE, lambda n, seed: items(n, seed, lambda topic: metre)),
        Task("haiku_topic", TEMPERATURE, lambda n, seed: items(n, seed, lambda topic: lambda r: on_topic(r, topic))),
        Task("haiku_novel", TEMPERATURE, novel_items),
    ]
