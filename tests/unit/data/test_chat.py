import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.chat import ReplyStream, fit_prompt, parse_reply, render, render_batch, render_prompt
from data.conversation import Conversation, Message, Part, assistant, user
from data.tokenizer import Tokenizer

TEXT = st.text(max_size=12)
PARTS = st.lists(st.builds(Part, st.sampled_from(["text", "calculator", "output"]), TEXT), max_size=5)
ASSISTANT = PARTS.map(lambda parts: Message("assistant", tuple(parts)))
CONVERSATION = st.lists(st.tuples(TEXT.map(user), ASSISTANT), min_size=1, max_size=4).map(
    lambda turns: tuple(message for turn in turns for message in turn)
)


def test_rendering_by_hand(tok: Tokenizer) -> None:
    chat = (user("12+30?"), assistant(Part("calculator", "12+30"), Part("output", "42"), "It is 42."))
    ids, mask = render(chat, tok)
    question, call, answer, words = (tok.encode(text) for text in ("12+30?", "12+30", "42", "It is 42."))
    assert ids == [
        *(tok.bos, tok.user_start, *question, tok.user_end, tok.assistant_start),
        *(tok.calculator_start, *call, tok.calculator_end),
        *(tok.output_start, *answer, tok.output_end),
        *(*words, tok.assistant_end),
    ]
    learned = [0] * (4 + len(question)) + [1] * (2 + len(call)) + [0] * (2 + len(answer)) + [1] * (len(words) + 1)
    assert mask == learned


@given(chat=CONVERSATION)
def test_loss_is_on_all_the_model_produces_and_nothing_else(tok: Tokenizer, chat: Conversation) -> None:
    ids, mask = render(chat, tok)
    assert len(ids) == len(mask)
    inside = "nothing"
    opens = {tok.user_start: "user", tok.assistant_start: "assistant", tok.output_start: "output"}
    for index, learned in zip(ids, mask, strict=True):
        if index in opens:
            inside = opens[index]
            expected = 0
        else:
            expected = int(inside == "assistant")
        assert learned == expected
        if index == tok.output_end:
            inside = "assistant"
        elif index in (tok.user_end, tok.assistant_end):
            inside = "nothing"


@given(chats=st.lists(CONVERSATION, max_size=4))
def test_a_batch_equals_one_by_one(tok: Tokenizer, chats: list[Conversation]) -> None:
    assert render_batch(chats, tok) == [render(chat, tok) for chat in chats]


@given(chat=CONVERSATION)
def test_a_prompt_is_the_beginning_of_the_rendered_chat(tok: Tokenizer, chat: Conversation) -> None:
    prompt = render_prompt(chat[:-1], tok)
    assert render(chat, tok)[0][: len(prompt)] == prompt
    assert prompt[-1] == tok.assistant_start


def test_a_prompt_without_a_question_is_refused(tok: Tokenizer) -> None:
    for chat in ((), (user("a"), assistant("b"))):
        with pytest.raises(ValueError, match="user"):
            render_prompt(chat, tok)


@given(chat=CONVERSATION, last=st.text(max_size=40), budget=st.integers(5, 80))
def test_a_prompt_fits_any_budget(tok: Tokenizer, chat: Conversation, last: str, budget: int) -> None:
    chat = (*chat, user(last))
    ids, dropped = fit_prompt(chat, tok, budget)
    assert len(ids) <= budget
    assert ids[:2] == [tok.bos, tok.user_start]
    assert ids[-2:] == [tok.user_end, tok.assistant_start]
    whole = render_prompt(chat[dropped:], tok)
    if len(whole) <= budget:
        assert ids == whole
        # Not one turn more than needed was dropped.
        assert not dropped or len(render_prompt(chat[dropped - 2 :], tok)) > budget
    else:
        assert dropped == len(chat) - 1
        assert last.endswith(tok.decode(ids))


def test_a_long_question_keeps_its_end_and_whole_characters(tok: Tokenizer) -> None:
    for budget in range(5, 30):
        ids, dropped = fit_prompt((user("a"), assistant("b"), user("🙃" * 50 + "?")), tok, budget)
        text = tok.decode(ids)
        assert dropped == 2
        assert text.endswith("?")
        assert set(text) <= {"🙃", "?"}


def _merged(parts: tuple[Part, ...]) -> list[Part]:
    merged: list[Part] = []
    for part in parts:
        if part.kind == "text" and merged and merged[-1].kind == "text":
            merged[-1] = Part("text", merged[-1].text + part.text)
        elif part.kind != "text" or part.text:
            merged.append(part)
    return merged


@given(parts=PARTS)
def test_a_rendered_reply_parses_back(tok: Tokenizer, parts: list[Part]) -> None:
    ids, _ = render((Message("assistant", tuple(parts)),), tok)
    assert list(parse_reply(ids[2:-1], tok)) == _merged(tuple(parts))


@given(ids=st.lists(st.one_of(st.integers(0, 299), st.integers(291, 299))))
def test_any_ids_stream_as_they_parse(tok: Tokenizer, ids: list[int]) -> None:
    stream = ReplyStream(tok)
    streamed = [part for index in ids for part in stream.feed(index)] + stream.finish()
    assert tuple(_merged(tuple(streamed))) == parse_reply(ids, tok)


def test_a_call_appears_when_it_is_complete(tok: Tokenizer) -> None:
    stream = ReplyStream(tok)
    ids = [tok.calculator_start, *tok.encode("1+2"), tok.calculator_end]
    assert [stream.feed(index) for index in ids[:-1]] == [[]] * (len(ids) - 1)
    assert stream.feed(ids[-1]) == [Part("calculator", "1+2")]
    assert parse_reply(ids[:-1], tok) == ()  # cut off inside: no call
