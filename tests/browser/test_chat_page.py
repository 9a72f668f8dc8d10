"""The chat page as its users meet it, in Chromium, with a scripted model."""

import itertools
import re
import time
from collections.abc import Callable

import pytest

from tests.browser import scripted
from tests.browser.conftest import Server, Tab

pytestmark = pytest.mark.browser

SECONDS_TO_FREEZE = 0.3


def test_streams_word_by_word(tab: Tab):
    tab.record()
    tab.ask("Tell me a story")
    seen = tab.seen()
    texts = [text for _, text in seen]
    assert len(texts) >= 15
    assert all(later.startswith(earlier.rstrip()) for earlier, later in itertools.pairwise(texts))
    steps = [len(later) - len(earlier) for earlier, later in itertools.pairwise(texts)]
    assert max(steps) < len(texts[-1]) / 3
    assert scripted.STORY.startswith(texts[-1])
    assert seen[-1][0] - seen[0][0] > 1000  # as it was written, not all at the end


def test_stop_freezes_the_text(tab: Tab):
    tab.record()
    tab.send("Tell me a story")
    tab.page.wait_for_function("() => window.seen.length > 5")
    stopped = tab.page.evaluate(
        "() => { document.querySelector('#box .stop-button').click(); return performance.now() }"
    )
    tab.finish()
    time.sleep(1)
    seen = tab.seen()
    assert (seen[-1][0] - stopped) / 1000 < SECONDS_TO_FREEZE
    assert len(seen[-1][1]) < len(scripted.STORY) / 4
    assert "stopped" in tab.notice()
    assert tab.ask("How many turns?") == "I see 2 of your messages."
    assert tab.replies()[0].rstrip() == seen[-1][1].rstrip()


def test_stop_does_not_wait_for_a_slow_token(tab: Tab):
    tab.record()
    tab.send("Be slow")
    tab.page.wait_for_function("() => window.seen.length > 0")
    tab.page.click("#box .stop-button")
    clicked = time.monotonic()
    tab.page.wait_for_selector("#box .submit-button", timeout=3000)
    assert time.monotonic() - clicked < 1
    assert tab.replies() == ["A"]


def test_retry_answers_anew_and_a_seed_repeats(tab: Tab):
    first = tab.ask("Roll the dice")
    retry(tab)
    second = tab.finish()
    assert second != first
    assert len(tab.questions()) == len(tab.replies()) == 1
    seed = re.search(r"seed (\d+)", tab.notice())[1]
    tab.setting("Seed", seed)
    retry(tab)
    assert tab.finish() == second
    assert f"seed {seed}" in tab.notice()


def retry(tab: Tab) -> None:
    tab.expect_reply()
    tab.page.click("#chat button[aria-label=Retry]")


def test_edit_resends_and_drops_what_followed(tab: Tab):
    tab.ask("First")
    tab.ask("Second")
    assert len(tab.questions()) == 2
    tab.expect_reply()
    tab.page.click("#chat button[aria-label=Edit] >> nth=0")
    tab.page.fill("#chat textarea", "Changed: how many turns?")
    tab.page.click("#chat button[aria-label=Submit]")
    assert tab.finish() == "I see 1 of your messages."
    assert tab.questions() == ["Changed: how many turns?"]


def test_new_chat_forgets_even_while_a_reply_is_written(tab: Tab):
    tab.ask("First")
    for _ in range(3):
        tab.send("Tell me a story")
        tab.page.wait_for_selector("#box .stop-button")
        tab.page.wait_for_function("() => document.querySelector('#chat').innerText.includes('word3')")
        tab.page.click("#new")
        tab.page.wait_for_selector("#chat .example")
        tab.page.wait_for_selector("#box .submit-button")
        time.sleep(0.3)
        assert tab.replies() == [] and tab.questions() == [] and tab.notice().strip() == ""
    assert tab.ask("How many turns?") == "I see 1 of your messages."


def test_a_message_sent_meanwhile_ends_the_reply_before_it(tab: Tab):
    tab.send("Tell me a story")
    tab.page.wait_for_function("() => document.querySelector('#chat').innerText.includes('word3')")
    assert tab.ask("How many turns?") == "I see 2 of your messages."
    time.sleep(0.5)
    assert tab.questions() == ["Tell me a story", "How many turns?"]
    assert len(tab.replies()) == 2 and len(tab.replies()[0]) < 100
    assert tab.page.is_visible("#box .submit-button")


def test_emoji_arrive_whole(tab: Tab):
    tab.record()
    assert tab.ask("Send an emoji") == scripted.EMOJI
    texts = [text for _, text in tab.seen()]
    assert len(texts) > 3
    assert not any("\ufffd" in text for text in texts)


def test_two_tabs_answer_at_once(visit: Callable[..., Tab]):
    one, two = visit(), visit()
    one.send("Tell me a story")
    one.page.wait_for_function("() => document.querySelector('#chat').innerText.includes('word2')")
    assert two.ask("How many turns?") == "I see 1 of your messages."
    assert one.page.is_visible("#box .stop-button")  # it is still being written to
    assert one.finish().startswith("word1 word2")
    assert two.replies() == ["I see 1 of your messages."]


def test_a_chat_longer_than_the_context_goes_on_and_says_so(tab: Tab):
    for number in range(1, 9):
        reply = tab.ask(f"{number}. How many turns are there, please? {'Padding. ' * 6}")
    remembered = int(re.search(r"I see (\d+)", reply)[1])
    assert 1 <= remembered < 8
    assert "left out" in tab.notice()
    assert len(tab.questions()) == 8  # forgotten by the model, not by the page
    assert tab.ask("x" * 2 * scripted.CONTEXT + " haiku") == scripted.HAIKU
    assert "only the end of it" in tab.notice()


def test_a_reply_that_is_cut_says_so(tab: Tab):
    tab.setting("Max tokens", "32")
    assert tab.ask("Tell me a story") == scripted.STORY[:32].rstrip()
    assert "cut" in tab.notice() and "Max tokens" in tab.notice()


def test_calculations_are_shown_as_such(tab: Tab):
    reply = tab.ask("What is 347 + 589?")
    assert tab.page.inner_text("#chat .calculation") == "347 + 589 = 936"
    assert re.sub(r"\s+", " ", reply) == "Let me work that out. 347 + 589 = 936 So it is 936."


def test_html_stays_text(tab: Tab):
    question = "<b>x</b> <img src=x onerror=alert(1)> &amp; <script>alert(2)</script> <!-- html **y** <|bos|>"
    assert tab.ask(question) == scripted.HTML
    assert tab.questions() == [question]
    assert tab.page.query_selector("#chat .message b, #chat .message img, #chat .message script") is None
    tab.page.click("#chat button[aria-label=Edit]")
    box = tab.page.query_selector("#chat textarea")
    assert box.input_value().replace("\u2060", "") == question
    tab.expect_reply()
    box.fill(box.input_value().replace("html", "what?"))
    tab.page.click("#chat button[aria-label=Submit]")
    assert tab.finish() == f"You said: {question.replace('html', 'what?')}"


def test_lines_and_spaces_stay_as_written(tab: Tab):
    assert tab.ask("A haiku, please") == scripted.HAIKU


def test_examples_can_be_clicked(tab: Tab):
    tab.page.click("#chat .example >> nth=0")
    tab.finish()
    assert tab.questions() == ["What is 63 + 29?"]


def test_run_and_stage_are_chosen(tab: Tab):
    assert "1.05 M parameters" in tab.page.inner_text("#about")
    assert tab.ask("Which stage?") == "I am sft."
    tab.page.click("#run input")
    options = [option.inner_text().strip(" ✓\n") for option in tab.page.query_selector_all("[role=option]")]
    assert options == ["demo · chat (sft)", "demo · mid", "demo · base"]
    tab.page.click("[role=option] >> text=base")
    tab.page.wait_for_function("() => document.querySelector('#about').innerText.includes('not learned to chat')")
    assert tab.ask("Which stage now?") == "I am pretrain."


def test_an_error_is_one_line_and_nothing_is_lost(tab: Tab):
    tab.ask("First")
    tab.send("Please fail")
    tab.page.wait_for_selector("#notice .failure")
    notice = tab.notice().strip()
    assert "out of <i>memory</i>" in notice and "\n" not in notice
    tab.page.wait_for_selector("#box .submit-button")
    assert tab.page.input_value("#box textarea") == "Please fail"
    assert tab.questions() == ["First"]
    tab.setting("Seed", "seven")
    tab.send("Again")
    tab.page.wait_for_function("() => document.querySelector('#notice').innerText.includes('seven')")
    tab.setting("Seed", "")
    assert tab.ask("How many turns?") == "I see 2 of your messages."


def test_an_empty_reply_is_shown_as_such(tab: Tab):
    assert tab.ask("Be silent") == "(no words)"


def test_a_blank_message_is_not_sent(tab: Tab):
    tab.send("   ")
    time.sleep(0.5)
    assert tab.questions() == []


def test_a_narrow_screen_is_usable(visit: Callable[..., Tab]):
    tab = visit(width=400, height=720)
    tab.ask("Tell me a story")
    tab.ask("What is 347 + 589?")
    assert tab.page.evaluate("() => document.documentElement.scrollWidth") <= 400
    for selector in ("#box textarea", "#box .submit-button", "#new", "#run", "#chat .bot.message >> nth=-1"):
        box = tab.page.locator(selector).bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= 400, selector
        assert box["y"] >= 0 and box["y"] + box["height"] <= 720, selector
    assert tab.page.locator("#chat").bounding_box()["height"] > 250


def test_the_page_says_what_it_is(tab: Tab, server: Server):
    assert tab.page.title() == "Tandem"
    assert tab.page.inner_text("#heading h1") == "Tandem"
    assert tab.page.request.get(server.url + "favicon.ico").ok
    assert "gradio" not in tab.page.inner_text("body").lower()
