"""The built-in corpus: plain documents and chats, drawn from the subjects of this folder in the shares below.

Document i of a corpus depends on the corpus's name, the seed and i alone. What `held_out` gives occurs in no
document: operands, wordings, names and phrases are reserved by a stable hash (data.synthetic.reserve).
"""

from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from random import Random

from data.conversation import Conversation, Document
from data.synthetic import (
    arithmetic,
    equations,
    facts,
    greetings,
    haiku,
    names,
    stories,
    unknown,
    word_problems,
)
from data.synthetic.draw import reseed
from data.synthetic.reserve import HeldOut

__all__ = ["BUILTIN", "KINDS", "SHARES", "HeldOut", "held_out", "poems"]


@dataclass(frozen=True)
class Subject:
    """How one subject appears: as a conversation, as plain text, and as an evaluation prompt."""

    chat: Callable[[Random], Conversation]
    line: Callable[[Random], str] | None
    held_out: Callable[[Random], HeldOut] | None


SUBJECTS: dict[str, Subject] = {
    "add_2digit": Subject(arithmetic.add, arithmetic.add_line, arithmetic.held_out_add),
    "sub_2digit": Subject(arithmetic.subtract, arithmetic.subtract_line, arithmetic.held_out_subtract),
    "times_table": Subject(arithmetic.times, arithmetic.times_line, arithmetic.held_out_times),
    "division": Subject(arithmetic.divide, arithmetic.divide_line, arithmetic.held_out_divide),
    "calculator": Subject(arithmetic.calculator, None, arithmetic.held_out_calculator),
    "equation": Subject(equations.chat, equations.line, equations.held_out),
    "word_problem": Subject(word_problems.chat, word_problems.line, word_problems.held_out),
    "questions": Subject(facts.chat, facts.line, facts.held_out),
    "greetings": Subject(greetings.chat, greetings.line, None),
    "names": Subject(names.chat, names.line, names.held_out),
    "unknown": Subject(unknown.chat, unknown.line, unknown.held_out),
    "haiku": Subject(haiku.chat, haiku.line, haiku.held_out),
    "stories": Subject(stories.chat, stories.line, None),
}
KINDS = (*(name for name, subject in SUBJECTS.items() if subject.held_out), "greetings")

# Percent of the documents of each corpus. `documents` are plain text, the others are conversations.
SHARES: dict[str, dict[str, float]] = {
    #                  documents  chats
    name: {"documents": plain, "chats": chat}
    for name, plain, chat in (
        ("add_2digit", 8, 6),
        ("sub_2digit", 7, 5),
        ("times_table", 8, 6),
        ("division", 14, 13),
        ("calculator", 0, 11),
        ("equation", 16, 14),
        ("word_problem", 12, 11),
        ("questions", 12, 10),
        ("greetings", 1, 6),
        ("names", 9, 8),
        ("unknown", 2, 4),
        ("haiku", 8, 5),
        ("stories", 3, 1),
    )
}
SHARES_SMOKE: dict[str, dict[str, float]] = {
    "questions": {"smoke_documents": 100, "smoke_chats": 52},
    "calculator": {"smoke_documents": 0, "smoke_chats": 42},
    "greetings": {"smoke_documents": 0, "smoke_chats": 6},
}
# Share of the chats that hold a second exchange, on another subject.
SECOND_EXCHANGE = 0.15
_SINGLE = frozenset({"names", "stories"})  # never joined with another: the longest, and the one with its own turns


@cache
def _table(corpus: str) -> tuple[tuple[str, ...], tuple[float, ...]]:
    """The subjects of a corpus and their cumulated shares, ending in 1."""
    shares = SHARES_SMOKE if corpus.startswith("smoke_") else SHARES
    used = {name: row[corpus] for name, row in shares.items() if row[corpus]}
    total = sum(used.values())
    return tuple(used), tuple(share / total for share in accumulate(used.values()))


def _subject(corpus: str, rng: Random) -> str:
    subjects, cumulated = _table(corpus)
    return subjects[min(bisect(cumulated, rng.random()), len(subjects) - 1)]


def _plan(corpus: str, rng: Random) -> tuple[str, ...]:
    """The subjects of a document, drawn before anything else, so that `poems` can skip the others."""
    first = _subject(corpus, rng)
    if corpus.endswith("documents") or first in _SINGLE or rng.random() >= SECOND_EXCHANGE:
        return (first,)
    second = _subject(corpus, rng)
    return (first,) if second in _SINGLE else (first, second)


def _content(corpus: str, plan: tuple[str, ...], rng: Random) -> str | Conversation:
    if corpus.endswith("documents"):
        return SUBJECTS[plan[0]].line(rng)
    return tuple(message for subject in plan for message in SUBJECTS[subject].chat(rng))


def generate(corpus: str, count: int, seed: int) -> Iterator[Document]:
    """The first `count` documents of a corpus."""
    rng, source = Random(), f"builtin:{corpus}"
    for index in range(count):
        reseed(rng, corpus, seed, index)
        yield Document(_content(corpus, _plan(corpus, rng), rng), source)


def _generator(corpus: str) -> Callable[[int, int], Iterator[Document]]:
    return lambda count, seed: generate(corpus, count, seed)


BUILTIN: dict[str, Callable[[int, int], Iterator[Document]]] = {
    corpus: _generator(corpus) for corpus in ("documents", "chats", "smoke_documents", "smoke_chats")
}


def poems(sources: Iterable[tuple[str, int, int]]) -> Iterator[str]:
    """Every haiku in the corpora given as (name, count, seed): what a new haiku must differ from.

    Only the documents that hold one are generated, so a quarter of a million documents take seconds.
    """
    rng = Random()
    for corpus, count, seed in sources:
        if corpus not in BUILTIN:
            continue
        for index in range(count):
            reseed(rng, corpus, seed, index)
            plan = _plan(corpus, rng)
            if "haiku" not in plan:
                continue
            content = _content(corpus, plan, rng)
            if isinstance(content, str):
                yield content.split("\n", 1)[1]
            else:
                yield from (m.text for m in content if m.role == "assistant" and m.text.count("\n") == 2)


def held_out(kind: str, n: int, seed: int) -> list[HeldOut]:
    """`n` different evaluation prompts of a kind, none of which occurs in training; fewer if there are fewer.

    Greetings are a fixed list: its first `n`, whatever the seed.
    """
    if kind == "greetings":
        return greetings.fixed_list()[:n]
    draw, rng = SUBJECTS[kind].held_out, Random()
    reseed(rng, f"held out {kind}", seed, 0)
    found: dict[Conversation, HeldOut] = {}
    for _ in range(50 * n):
        if len(found) == n:
            break
        item = draw(rng)
        found.setdefault(item.messages, item)
    return list(found.values())
