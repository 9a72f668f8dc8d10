"""Conversations to token ids with a loss mask, and generated ids back to parts.

A conversation is `bos`, then each message between its start and end marks. In an assistant's message a calculator
call stands between calculator marks, and the answer between output marks. Loss is on what the model has to produce
itself: the assistant's text, its calls and its end mark; never on the user's words, nor on the calculator's answers.
"""

from collections.abc import Iterable, Sequence

from data.conversation import Conversation, Part, PartKind
from data.tokenizer import StreamDecoder, Tokenizer


def render(conversation: Conversation, tok: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids of a whole conversation and, for each, 1 if the model learns to produce it, else 0."""
    return render_batch([conversation], tok)[0]


def render_batch(conversations: Sequence[Conversation], tok: Tokenizer) -> list[tuple[list[int], list[int]]]:
    """`render` for many: all their texts are encoded in one call."""
    texts = [part.text for messages in conversations for message in messages for part in message.parts]
    encoded = iter(tok.encode_batch(texts))
    return [_assemble(messages, encoded, tok) for messages in conversations]


def _assemble(messages: Conversation, encoded: Iterable[list[int]], tok: Tokenizer) -> tuple[list[int], list[int]]:
    encoded = iter(encoded)
    ids, mask = [tok.bos], [0]

    def add(tokens: list[int], learned: int) -> None:
        ids.extend(tokens)
        mask.extend([learned] * len(tokens))

    for message in messages:
        assistant = message.role == "assistant"
        add([tok.assistant_start if assistant else tok.user_start], 0)
        for part in message.parts:
            tokens = next(encoded)
            if part.kind == "calculator":
                add([tok.calculator_start, *tokens, tok.calculator_end], 1)
            elif part.kind == "output":
                add([tok.output_start, *tokens, tok.output_end], 0)
            else:
                add(tokens, int(assistant))
        add([tok.assistant_end if assistant else tok.user_end], int(assistant))
    return ids, mask


def render_prompt(conversation: Conversation, tok: Tokenizer) -> list[int]:
    """Ids of a conversation that ends in a user's turn, with the mark that starts the answer."""
    if not conversation or conversation[-1].role != "user":
        raise ValueError("a prompt ends with a user's message")
    return [*render(conversation, tok)[0], tok.assistant_start]


def fit_prompt(conversation: Conversation, tok: Tokenizer, budget: int) -> tuple[list[int], int]:
    """`render_prompt` in at most `budget` tokens, and the number of messages dropped for it, oldest first.

    What is left starts with a user's turn. A last turn too long by itself loses its beginning.
    """
    if budget < 5:
        raise ValueError(f"no prompt fits in {budget} tokens; 5 is the least")
    ids = render_prompt(conversation, tok)
    # Token ranges of the messages, from their start marks: a kept suffix is cut out, nothing is encoded again.
    starts = [at for at, index in enumerate(ids[:-1]) if index in (tok.user_start, tok.assistant_start)]
    dropped = 0
    while dropped < len(conversation) - 1:
        length = 1 + len(ids) - starts[dropped]
        if length <= budget and conversation[dropped].role == "user":
            break
        dropped += 1
    kept = ids[starts[dropped] :]
    if 1 + len(kept) > budget:
        words = kept[1:-2][-(budget - 4) :]
        while words and tok.token_bytes(words[0])[0] & 0xC0 == 0x80:  # do not begin inside a character
            words = words[1:]
        kept = [tok.user_start, *words, tok.user_end, tok.assistant_start]
    return [tok.bos, *kept], dropped


class ReplyStream:
    """Generated ids to parts, as they come: text at once, a call or an answer when it is complete."""

    def __init__(self, tok: Tokenizer) -> None:
        self._tok = tok
        self._text = StreamDecoder(tok)
        self._inside: PartKind = "text"
        self._ids: list[int] = []

    def feed(self, index: int) -> list[Part]:
        """The parts that this id completes: none, a piece of text, a call or an answer."""
        tok = self._tok
        if index in tok.special_ids:
            return self._mark(index)
        if self._inside != "text":
            self._ids.append(index)
            return []
        return _text_part(self._text.feed(index))

    def finish(self) -> list[Part]:
        """The rest. A call or an answer that never ended is dropped: nothing could follow it in a later prompt."""
        rest = _text_part(self._text.finish()) if self._inside == "text" else []
        self._inside, self._ids = "text", []
        return rest

    def _mark(self, index: int) -> list[Part]:
        tok = self._tok
        if (self._inside, index) in (("calculator", tok.calculator_end), ("output", tok.output_end)):
            done = Part(self._inside, tok.decode(self._ids))
            self._inside, self._ids = "text", []
            return [done]
        if index in (tok.calculator_start, tok.output_start):
            rest = _text_part(self._text.finish()) if self._inside == "text" else []
            self._inside = "calculator" if index == tok.calculator_start else "output"
            self._ids = []
            return rest
        return []


def _text_part(text: str) -> list[Part]:
    return [Part("text", text)] if text else []


def parse_reply(ids: Iterable[int], tok: Tokenizer) -> tuple[Part, ...]:
    """The parts of a whole reply: what ReplyStream gives, with neighbouring pieces of text joined."""
    stream = ReplyStream(tok)
    parts: list[Part] = []
    for part in [*(part for index in ids for part in stream.feed(index)), *stream.finish()]:
        if part.kind == "text" and parts and parts[-1].kind == "text":
            parts[-1] = Part("text", parts[-1].text + part.text)
        else:
            parts.append(part)
    return tuple(parts)


def texts(content: str | Conversation) -> list[str]:
    """The texts inside a document, as they are encoded: what a tokenizer is trained on."""
    if isinstance(content, str):
        return [content]
    return [part.text for message in content for part in message.parts]
