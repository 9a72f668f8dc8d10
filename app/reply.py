"""One reply of a chat: from the conversation so far to an answer that grows as the model writes.

The page and the command line both use it. It knows nothing of either, of torch, or of where weights lie: a
`ChatModel` is handed to it. Nothing is kept between replies, so that tabs share no state.
"""

import math
import queue
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from config.errors import UserError
from data.chat import ReplyStream, fit_prompt, render_prompt
from data.conversation import Conversation, Message, Part
from data.tokenizer import Tokenizer

LARGEST_SEED = 2**63 - 1
# A snapshot costs the page more than a token costs a small model: above 30 a second, words come in twos and threes.
SECONDS_BETWEEN_SNAPSHOTS = 0.03
Ending = Literal["complete", "stopped", "length", "context"]


@dataclass(frozen=True)
class Settings:
    """How to sample. `top_k` 0 is off, temperature 0 is greedy, and `seed` None means a fresh one for each reply."""

    temperature: float = 0.7
    top_k: int = 0
    seed: int | None = None
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and 0 <= self.temperature <= 5):
            raise UserError(f"temperature is {self.temperature}, expected a number from 0 to 5")
        if self.top_k < 0:
            raise UserError(f"top-k is {self.top_k}, expected 0 (off) or more")
        if self.seed is not None and not 0 <= self.seed <= LARGEST_SEED:
            raise UserError(f"seed is {self.seed}, expected a whole number from 0 to {LARGEST_SEED}")
        if self.max_tokens < 1:
            raise UserError(f"max tokens is {self.max_tokens}, expected at least 1")


@dataclass(frozen=True)
class ChatModel:
    """What a chat needs of a model. `stream` yields token ids one at a time; closing its iterator stops the work."""

    tokenizer: Tokenizer
    context: int  # tokens of prompt and reply together
    stream: Callable[[list[int], Settings], Iterator[int]]


@dataclass(frozen=True)
class Answer:
    """A reply as it stands.

    While `ending` is None, more is to come. Then it says why the reply ended: the model was done, it was stopped, it
    is `max_tokens` long, or the context is full.
    """

    parts: tuple[Part, ...]
    seed: int
    tokens: int = 0
    seconds: float = 0.0
    dropped_turns: int = 0
    question_cut: bool = False  # the last message alone was too long, and only its end was read
    ending: Ending | None = None

    @property
    def message(self) -> Message:
        """The reply as a turn of the conversation. A call that was cut off before its output is left out."""
        parts = self.parts
        if self.ending and parts and parts[-1].kind == "calculator":
            parts = parts[:-1]
        return Message("assistant", parts)


def answer(model: ChatModel, conversation: Conversation, settings: Settings, stop: threading.Event) -> Iterator[Answer]:
    """Answer the last turn, yielding the reply as it grows; the last one yielded has an `ending`.

    The model runs in a thread of its own, so that setting `stop` ends the reply at once, however long one token
    takes. What the model raises is raised here. Closing the iterator stops the model too.
    """
    reserve = min(settings.max_tokens, model.context // 2)
    budget = model.context - reserve
    prompt, dropped_turns = fit_prompt(conversation, model.tokenizer, budget)
    limit = min(settings.max_tokens, model.context - len(prompt))
    seed = secrets.randbelow(2**31) if settings.seed is None else settings.seed
    current = Answer(
        parts=(),
        seed=seed,
        dropped_turns=dropped_turns,
        question_cut=len(render_prompt(conversation[-1:], model.tokenizer)) > budget,
    )
    ids = model.stream(prompt, replace(settings, seed=seed, max_tokens=limit))
    written: queue.SimpleQueue[int | BaseException | None] = queue.SimpleQueue()
    started = time.monotonic()
    threading.Thread(target=_write, args=(ids, written, stop), name="reply", daemon=True).start()
    text = ReplyStream(model.tokenizer)
    try:
        yield current
        ending = None
        while ending is None:
            news, ended = _take(written)
            if stop.is_set():
                ending = "stopped"
                break
            parts = current.parts
            for token in news:
                parts = _extend(parts, text.feed(token))
            tokens = current.tokens + len(news)
            if ended and tokens < limit:
                ending = "complete"
                parts = _extend(parts, text.finish())
            elif ended:  # cut off, perhaps inside a character: that one is left out
                ending = "length" if limit == settings.max_tokens else "context"
            current = replace(current, parts=parts, tokens=tokens, seconds=time.monotonic() - started)
            if news and not ended:
                yield current
                stop.wait(SECONDS_BETWEEN_SNAPSHOTS)
        yield replace(current, seconds=time.monotonic() - started, ending=ending)
    finally:
        stop.set()


def _write(ids: Iterator[int], written: "queue.SimpleQueue[int | BaseException | None]", stop: threading.Event) -> None:
    """Put the model's ids into the queue until it ends (None), fails (its exception) or is stopped."""
    try:
        for token in ids:
            if stop.is_set():
                break
            written.put(token)
        written.put(None)
    except Exception as error:  # it belongs to whoever waits for the reply
        written.put(error)
    finally:
        close = getattr(ids, "close", None)
        if close:
            close()


def _take(written: "queue.SimpleQueue[int | BaseException | None]") -> tuple[list[int], bool]:
    """The ids that have come, after a short wait for the first, and whether that was the end."""
    news: list[int] = []
    try:
        item = written.get(timeout=0.05)
        while item is not None:
            if isinstance(item, BaseException):
                raise item
            news.append(item)
            item = written.get_nowait()
    except queue.Empty:
        return news, False
    return news, True


def _extend(parts: tuple[Part, ...], news: list[Part]) -> tuple[Part, ...]:
    """Append what the stream says came; text goes on where text stood."""
    for part in news:
        if part.kind == "text" and parts and parts[-1].kind == "text":
            parts = (*parts[:-1], Part("text", parts[-1].text + part.text))
        else:
            parts = (*parts, part)
    return parts
