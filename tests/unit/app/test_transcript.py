from dataclasses import replace
from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from app.reply import Answer
from app.transcript import NOTHING_SAID, failure, plain, show, status, typed
from config.errors import UserError
from data.conversation import Part, assistant, user

ANSWER = Answer((Part("text", "x"),), seed=41, tokens=12, seconds=0.34, ending="complete")
HTML_PIECES = st.sampled_from(
    ["<", ">", "&", "b", "/", "!", "--", "?", "#", "38", ";", " ", "amp", "script", "=", "x", "\n"]
)


class Reader(HTMLParser):
    """Reads text as HTML: what a browser would show, and whether it saw anything but text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.shown, self.markup = "", False

    def handle_data(self, data: str) -> None:
        self.shown += data

    def _found(self, *_: object) -> None:
        self.markup = True

    handle_starttag = handle_endtag = handle_startendtag = handle_comment = handle_decl = handle_pi = _found
    unknown_decl = handle_entityref = handle_charref = _found


@given(st.lists(HTML_PIECES).map("".join) | st.text())
def test_no_text_is_markup_and_all_of_it_comes_back(text: str):
    shown = plain(text)
    reader = Reader()
    reader.feed(shown)
    reader.close()
    assert not reader.markup and reader.shown == shown
    assert shown.replace("\u2060", "") == text.replace("\u2060", "")
    if "\u2060" not in text:
        assert typed(shown) == text


def test_ordinary_text_is_left_alone():
    text = "1 < 2 && 3 > 2, R & D **stars** <3"
    assert plain(text) == text


def test_messages_are_shown_in_order():
    said = (user("2+3?"), assistant("It is ", Part("calculator", "2+3"), Part("output", "5"), "5.\n  Really."))
    question, reply = show(said)
    assert question == {"role": "user", "content": [{"type": "text", "text": "2+3?"}]}
    assert [piece["type"] for piece in reply["content"]] == ["text", "component", "text"]
    assert ">2+3 = 5<" in reply["content"][1]["value"]
    assert reply["content"][2]["text"] == "5.\n  Really."


def test_a_calculation_is_escaped_and_may_wait_for_its_output():
    (reply,) = show((assistant(Part("calculator", "<b>1")),))
    assert "&lt;b&gt;1 = …" in reply["content"][0]["value"]


def test_an_empty_reply_says_so():
    (reply,) = show((assistant(),))
    assert reply["content"] == [{"type": "text", "text": NOTHING_SAID}]


def test_status_tells_seed_and_length():
    assert "12 tokens in 0.3 s · seed 41" in status(ANSWER, 256)
    assert "stopped" in status(replace(ANSWER, ending="stopped"), 256)
    assert "seed" not in status(replace(ANSWER, ending=None), 256)


def test_status_announces_what_was_left_out():
    assert "oldest message was left out" in status(replace(ANSWER, dropped_turns=1), 256)
    assert "oldest 4 messages were left out" in status(replace(ANSWER, dropped_turns=4, ending=None), 256)
    assert "only the end" in status(replace(ANSWER, question_cut=True), 256)
    assert "Max tokens" in status(replace(ANSWER, ending="length"), 256)
    assert "2,048 tokens" in status(replace(ANSWER, ending="context"), 2048)
    assert 'class="note"' not in status(ANSWER, 256)


def test_a_failure_is_one_escaped_line():
    assert failure(UserError("set <x> to 3")) == '<p class="failure">set &lt;x&gt; to 3</p>'
    line = failure(RuntimeError("first\nsecond"))
    assert "RuntimeError: first." in line and "second" not in line
    assert "MemoryError." in failure(MemoryError())
