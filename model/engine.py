"""Generation: prompts of token ids in, replies of token ids out, one at a time or in batches.

Knows token ids only. The ids that end a reply and the calculator are handed in by the caller.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from config.errors import UserError
from model.decoding.captured import CapturedSteps, Pool
from model.decoding.sampling import Sampling
from model.decoding.steps import EagerSteps, Steps
from model.gpt import GPT

BATCH_ROWS = 256  # prompts decoded together
COMPACT_BELOW = 0.75  # share of live rows under which finished ones are dropped from the batch


class Tool(Protocol):
    """A tool that the model calls in its reply: `call_start … call_end`, answered by `output_start … output_end`."""

    call_start: int
    call_end: int
    output_start: int
    output_end: int

    def run(self, call: list[int]) -> list[int]:
        """Ids of the answer, of the ids between call_start and call_end. Never raises."""


class _Reply:
    """One row's reply as it grows, and what the calculator still has to say in it."""

    def __init__(self, room: int) -> None:
        self.ids: list[int] = []
        self.room = room
        self.forced: deque[int] = deque()
        self.call: list[int] | None = None
        self.done = room <= 0

    def dictated(self) -> int | None:
        """The reply's next id if the calculator dictates it."""
        return self.forced[0] if self.forced else None

    def goes_on(self) -> bool:
        """Whether there is room for more than one further id."""
        return not self.done and len(self.ids) + 1 < self.room

    def push(self, drawn: int, stop_ids: frozenset[int], tool: Tool | None) -> int | None:
        """Take the drawn id, or the next one that the calculator dictates; return it, or None at the reply's end."""
        dictated = bool(self.forced)
        token = self.forced.popleft() if dictated else drawn
        if token in stop_ids:
            self.done = True
            return None
        self.ids.append(token)
        self.done = len(self.ids) >= self.room
        if tool is not None and not dictated:
            if token == tool.call_start:
                self.call = []
            elif token == tool.call_end and self.call is not None:
                self.forced.extend((tool.output_start, *tool.run(self.call), tool.output_end))
                self.call = None
            elif self.call is not None:
                self.call.append(token)
        return token


class Engine:
    """Generates with a model. Safe to use from several threads: every call has a cache of its own."""

    def __init__(
        self, model: GPT, stop_ids: frozenset[int], tool: Tool | None = None, fp8_weights: bool = False
    ) -> None:
        """With `fp8_weights` a single reply on a GPU reads its matrices in 8 bits, as they were at the first call.

        Raises UserError when the device or the model does not allow that.
        """
        self.model = model
        self.stop_ids = stop_ids
        self.tool = tool
        self.context = model.config.context
        self.workspaces = Pool(model, fp8_weights)

    def stream(self, prompt: list[int], sampling: Sampling) -> Iterator[int]:
        """The reply's ids one at a time, the calculator's answers included, the stop id left out.

        Ends at a stop id, at max_tokens, or where the context is full; closing the iterator ends the work.
        Raises UserError when the prompt is empty or fills the context.
        """
        for tokens in self._decode([prompt], sampling, self._generator(sampling), 0):
            yield tokens[0]

    def generate(self, prompts: list[list[int]], sampling: Sampling) -> list[list[int]]:
        """Replies to many prompts, decoded together in batches of similar length; the order of `prompts` is kept.

        With a seed, a prompt's reply depends on the batch it is decoded in, so the same list gives the same replies.
        """
        replies: list[list[int]] = [[] for _ in prompts]
        order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
        generator = self._generator(sampling)  # one for all batches: begun anew, each would draw the same
        for at in range(0, len(order), BATCH_ROWS):
            batch = order[at : at + BATCH_ROWS]
            for tokens in self._decode([prompts[index] for index in batch], sampling, generator, at):
                for row, token in tokens.items():
                    replies[batch[row]].append(token)
        return replies

    def _generator(self, sampling: Sampling) -> torch.Generator:
        generator = torch.Generator(device=self.model.embedding.weight.device)
        if sampling.seed is None:
            generator.seed()
        else:
            generator.manual_seed(sampling.seed)
        return generator

    @contextmanager
    def _steps(
        self, prompts: list[list[int]], sampling: Sampling, generator: torch.Generator, first: int
    ) -> Iterator[Steps]:
        """Steps that have read the prompts; `first`: the number of the first one among all that share the generator."""
        longest = max(len(prompt) for prompt in prompts)
        work = self.workspaces.take(len(prompts), longest + sampling.max_tokens)
        if work is None:
            yield EagerSteps(self.model, prompts, sampling, generator)
            return
        try:
            yield CapturedSteps(work, prompts, sampling, generator.initial_seed(), first)
        finally:
            self.workspaces.give(work)

    def _decode(
        self, prompts: list[list[int]], sampling: Sampling, generator: torch.Generator, first: int
    ) -> Iterator[dict[int, int]]:
        """Step by step, {row: id} of the rows that got one."""
        for prompt in prompts:
            if not 0 < len(prompt) < self.context:
                raise UserError(f"the prompt has {len(prompt)} tokens; expected 1 to {self.context - 1}")
        replies = [_Reply(min(sampling.max_tokens, self.context - len(prompt))) for prompt in prompts]
        live = list(range(len(prompts)))  # which prompt each row of the batch is
        with self._steps(prompts, sampling, generator, first) as steps:
            while live:
                if steps.ahead and any(replies[index].goes_on() for index in live):
                    steps.advance([replies[index].dictated() for index in live])
                taken: dict[int, int] = {}
                following: list[int | None] = []
                for index, drawn in zip(live, steps.read(), strict=True):
                    reply = replies[index]
                    token = None if reply.done else reply.push(drawn, self.stop_ids, self.tool)
                    if token is not None:
                        taken[index] = token
                    following.append(drawn if token is None else token)
                if taken:
                    yield taken
                alive = [row for row, index in enumerate(live) if not replies[index].done]
                if not alive:
                    return
                if len(alive) < COMPACT_BELOW * len(live):
                    steps.keep(alive)
                    live = [live[row] for row in alive]
                    following = [following[row] for row in alive]
                if not steps.ahead:
                    steps.advance(following)
