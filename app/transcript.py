"""How a conversation and what is to be said about it look on the page. Pure functions; no Gradio here.

Gradio's chat puts message text into the page as HTML, with Markdown rendering off too. What people and models write
is made plain text here, and everything in the notices is escaped.
"""

import html
import re
from typing import Any

from app.reply import Answer
from config.errors import UserError
from data.conversation import Conversation, Message

# Written between "<" or "&" and what follows, the invisible word joiner keeps HTML from seeing a tag or an entity.
# Unlike "&lt;" it leaves the text as it was typed in the box where a turn is edited.
_JOINER = "\u2060"
_OPENS_HTML = re.compile(r"<(?=[A-Za-z/!?])|&(?=[#A-Za-z])")
_JOINED = re.compile(f"([<&]){_JOINER}")
NOTHING_SAID = "(no words)"


def plain(text: str) -> str:
    """Text that a browser shows as it is, with no tag and no entity in it."""
    return _OPENS_HTML.sub(rf"\g<0>{_JOINER}", text)


def typed(text: str) -> str:
    """Text that was edited on the page, without what `plain` put in."""
    return _JOINED.sub(r"\1", text)


def show(conversation: Conversation) -> list[dict[str, Any]]:
    """A conversation as `gr.Chatbot` takes it: text as plain text, a calculator call as a small block of its own."""
    return [{"role": message.role, "content": _content(message)} for message in conversation]


def _content(message: Message) -> list[dict[str, Any]]:
    pieces = []
    for index, part in enumerate(message.parts):
        if part.kind == "text":
            pieces.append({"type": "text", "text": plain(part.text)})
        elif part.kind == "calculator":
            following = message.parts[index + 1 : index + 2]
            result = following[0].text if following and following[0].kind == "output" else "…"
            pieces.append(_calculation(f"{part.text.strip()} = {result.strip()}"))
    return pieces or [{"type": "text", "text": NOTHING_SAID}]


def _calculation(sum_: str) -> dict[str, Any]:
    block = f'<span class="calculation" title="Worked out by the calculator">{html.escape(sum_)}</span>'
    # What Chatbot makes of a gr.HTML, without building a component for every word that is streamed.
    return {"type": "component", "component": "html", "value": block, "constructor_args": {}, "props": {}}


def status(reply: Answer, context: int) -> str:
    """What to say of a reply, as HTML: what was left out and why it ended, then how it can be had again."""
    notes = []
    if reply.dropped_turns:
        many = reply.dropped_turns > 1
        notes.append(
            f"This chat is longer than the {context:,} tokens the model can remember: its oldest "
            f"{f'{reply.dropped_turns} messages were' if many else 'message was'} left out."
        )
    if reply.question_cut:
        notes.append("Your message is longer than the model can read: only the end of it was used.")
    if reply.ending == "length":
        notes.append("The reply was cut at its longest: raise “Max tokens” in Settings for longer ones.")
    if reply.ending == "context":
        notes.append(f"The reply was cut: it filled the {context:,} tokens the model can remember.")
    lines = [f'<p class="note">{html.escape(note)}</p>' for note in notes]
    if reply.ending:
        facts = [f"{reply.tokens} tokens in {reply.seconds:.1f} s", f"seed {reply.seed}"]
        if reply.ending == "stopped":
            facts.insert(0, "stopped")
        title = "With this seed in Settings, the same reply comes again"
        lines.append(f'<p class="facts" title="{title}">{html.escape(" · ".join(facts))}</p>')
    return "".join(lines)


def failure(error: Exception) -> str:
    """One clear line on what went wrong, as HTML."""
    if isinstance(error, UserError):
        line = str(error)
    else:
        detail = str(error).strip().splitlines()
        line = f"The model failed with {type(error).__name__}{f': {detail[0]}' if detail else ''}. Try again."
    return f'<p class="failure">{html.escape(line)}</p>'
