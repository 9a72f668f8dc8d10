"""Tasks in which the model writes a reply and the reply is judged."""

from collections.abc import Callable
from typing import Any

from data.conversation import Conversation, Part
from evals.task import Item, Task

# Answers a list of conversations at a temperature with a seed, in the same order.
Respond = Callable[[list[Conversation], float, int], list[tuple[Part, ...]]]
SAMPLES = 20


def run(task: Task, respond: Respond, n: int, seed: int) -> dict[str, Any]:
    """Ask all items of a task and judge the replies.

    Returns `share` (right ones over asked ones), `n`, `temperature` and at most 20 `samples`, half of them wrong
    replies where there are any.
    """
    items = task.items(n, seed)
    if not items:
        raise ValueError(f"task {task.name} has no items for n={n}")
    replies = respond([item.messages for item in items], task.temperature, seed)
    if len(replies) != len(items):
        raise ValueError(f"task {task.name}: {len(items)} prompts, but {len(replies)} replies")
    judged = [_judge(item, reply) for item, reply in zip(items, replies, strict=True)]
    right = [sample for sample in judged if sample["correct"]]
    wrong = [sample for sample in judged if not sample["correct"]]
    kept_wrong = wrong[: max(SAMPLES // 2, SAMPLES - len(right))]
    return {
        "share": len(right) / len(judged),
        "n": len(judged),
        "temperature": task.temperature,
        "samples": right[: SAMPLES - len(kept_wrong)] + kept_wrong,
    }


def remembered(respond: Respond) -> Respond:
    """Wrap `respond` so that tasks with the same prompts (the three of the haiku) share one set of replies."""
    known: dict[tuple[tuple[Conversation, ...], float, int], list[tuple[Part, ...]]] = {}

    def answer(conversations: list[Conversation], temperature: float, seed: int) -> list[tuple[Part, ...]]:
        key = (tuple(conversations), temperature, seed)
        if key not in known:
            known[key] = respond(conversations, temperature, seed)
        return known[key]

    return answer


def _judge(item: Item, reply: tuple[Part, ...]) -> dict[str, Any]:
    """One row of the samples. The judge sees the text alone, the reader the calculator's part as well."""
    text = "".join(part.text for part in reply if part.kind == "text").strip()
    return {
        "prompt": "\n".join(message.text for message in item.messages if message.role == "user"),
        "reply": _shown(reply),
        "answer": item.answer,
        "correct": bool(item.grade(text)),
    }


def _shown(reply: tuple[Part, ...]) -> str:
    """A reply as one string: `[347 + 589 = 936] The answer is 936.`"""
    marks = {"text": "{}", "calculator": "[{}", "output": " = {}] "}
    return "".join(marks[part.kind].format(part.text) for part in reply).strip()
