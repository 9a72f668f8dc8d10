"""Generation: prompts of token ids in, replies of token ids out, one at a time or in batches.

Knows token ids only. The ids that end a reply and the calculator are handed in by the caller.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from config.errors import UserError
from model.cache import KVCache
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


@dataclass(frozen=True)
class Sampling:
    """How tokens are drawn. Temperature 0 takes the likeliest; top_k 0 and top_p 1 are off; seed None is fresh."""

    temperature: float = 0.7
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None
    max_tokens: int = 256

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or self.top_k < 0 or not 0 < self.top_p <= 1 or self.max_tokens < 1:
            raise UserError(
                f"found temperature {self.temperature}, top_k {self.top_k}, top_p {self.top_p}, max_tokens "
                f"{self.max_tokens}; expected temperature ≥ 0, top_k ≥ 0, 0 < top_p ≤ 1 and max_tokens ≥ 1"
            )


def sample(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> Tensor:
    """Draw one id a row (B,) from logits (B, V), on the logits' device, without waiting for it."""
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    # The largest first becomes 0: divided by however small a temperature, none overflows.
    logits = (logits - logits.amax(dim=-1, keepdim=True)) / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        lowest = logits.topk(sampling.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < lowest, float("-inf"))
    if sampling.top_p < 1:
        ordered, order = logits.sort(dim=-1, descending=True)
        # A token stays while the probability before it is under top_p, so the likeliest always stays.
        probabilities = ordered.softmax(dim=-1)
        ordered = ordered.masked_fill(probabilities.cumsum(dim=-1) - probabilities >= sampling.top_p, float("-inf"))
        logits = torch.empty_like(logits).scatter(-1, order, ordered)
    # Exponential race: argmax of p / Exp(1) is a draw from p, with no device synchronisation.
    # Never 0, which would make a token of probability 0 the winner.
    noise = torch.empty_like(logits).exponential_(1, generator=generator).clamp_min_(torch.finfo(logits.dtype).tiny)
    return (logits.softmax(dim=-1) / noise).argmax(dim=-1)


class _Reply:
    """One row's reply as it grows, and what the calculator still has to say in it."""

    def __init__(self, room: int) -> None:
        self.ids: list[int] = []
        self.room = room
        self.forced: deque[int] = deque()
        self.call: list[int] | None = None
        self.done = room <= 0

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

    def __init__(self, model: GPT, stop_ids: frozenset[int], tool: Tool | None = None) -> None:
        self.model = model
        self.stop_ids = stop_ids
        self.tool = tool
        self.context = model.config.context

    def stream(self, prompt: list[int], sampling: Sampling) -> Iterator[int]:
        """The reply's ids one at a time, the calculator's answers included, the stop id left out.

        Ends at a stop id, at max_tokens, or where the context is full; closing the iterator ends the work.
        Raises UserError when the prompt is empty or fills the context.
        """
        for tokens in self._decode([prompt], sampling, self._generator(sampling)):
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
            for tokens in self._decode([prompts[index] for index in batch], sampling, generator):
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

    def _decode(
        self, prompts: list[list[int]], sampling: Sampling, generator: torch.Generator
    ) -> Iterator[dict[int, int]]:
        """Step by step, {row: id} of the rows that got one."""
        for prompt in prompts:
            if not 0 < len(prompt) < self.context:
                raise UserError(f"the prompt has {len(prompt)} tokens; expected 1 to {self.context - 1}")
        device = self.model.embedding.weight.device
        lengths = [len(prompt) for prompt in prompts]
        longest = max(lengths)
        slots = min(self.context, longest + sampling.max_tokens)
        cache = KVCache(self.model.config, len(prompts), slots, device, self.model.embedding.weight.dtype)
        ids = torch.tensor([prompt + [prompt[-1]] * (longest - len(prompt)) for prompt in prompts], device=device)
        positions = torch.arange(longest, device=device).expand(len(prompts), longest)
        last = torch.tensor(lengths, device=device) - 1
        hidden = self._forward(ids, cache, positions)[torch.arange(len(prompts), device=device), last]
        replies = [_Reply(min(sampling.max_tokens, self.context - length)) for length in lengths]
        live = list(range(len(prompts)))  # which prompt each row of the batch is
        at = last
        while True:
            drawn = sample(self._logits(hidden), sampling, generator).tolist()
            taken: dict[int, int] = {}
            following = []
            for index, token in zip(live, drawn, strict=True):
                reply = replies[index]
                token = None if reply.done else reply.push(token, self.stop_ids, self.tool)
                if token is not None:
                    taken[index] = token
                following.append(prompts[index][0] if token is None else token)
            if taken:
                yield taken
            alive = [row for row, index in enumerate(live) if not replies[index].done]
            if not alive:
                return
            at = at + 1
            if len(alive) < COMPACT_BELOW * len(live):
                rows = torch.tensor(alive, device=device)
                cache.keep(rows)
                at = at[rows]
                live = [live[row] for row in alive]
                following = [following[row] for row in alive]
            # A finished row that is still in the batch idles on its last slot.
            at = at.clamp(max=slots - 1)
            hidden = self._forward(torch.tensor(following, device=device)[:, None], cache, at[:, None])[:, 0]

    @torch.inference_mode()
    def _forward(self, ids: Tensor, cache: KVCache, positions: Tensor) -> Tensor:
        cache.begin(positions)
        return self.model(ids, cache, positions)

    @torch.inference_mode()
    def _logits(self, hidden: Tensor) -> Tensor:
        return self.model.logits(hidden)
