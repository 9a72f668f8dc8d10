"""What an evaluation task is: prompts that training never saw, and a judge for each reply."""

from collections.abc import Callable
from dataclasses import dataclass

from data.conversation import Conversation


@dataclass(frozen=True)
class Item:
    """One prompt (a conversation that ends with the user), its judge, and the right answer for the reader."""

    messages: Conversation
    grade: Callable[[str], bool]
    answer: str


@dataclass(frozen=True)
class Task:
    """A named set of items; `items(n, seed)` gives up to `n` different ones, the same for the same seed."""

    name: str
    temperature: float
    items: Callable[[int, int], list[Item]]
