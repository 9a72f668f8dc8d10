"""The chat page: what is on it, and what happens when something on it is pressed.

What a tab has said lives in `Sessions`; the loaded models are shared. A reply is a generator that Gradio runs once a
request, so tabs answer at once.
"""

import html
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.reply import Settings, answer
from app.runs import ModelCache, Run, describe
from app.session import Sessions
from app.transcript import failure, show, status, typed
from config.errors import UserError
from data.conversation import Conversation, user

TITLE = "Tandem"
SENTENCE = "Chat with a language model that was trained on this machine. What you type stays here."
STAGE_NOTES = {
    "pretrain": "This stage has only read text and has not learned to chat: it goes on writing, and may wander.",
    "midtrain": "This stage has seen chats, but has not been finished for them.",
}
INVITATION = "Ask it something, or try one of these"
EXAMPLES = (
    "What is 63 + 29?",
    "What is 347 + 589?",
    "If 5x + 3 = 13, then x is",
    "Write a haiku about the moon.",
    "What is the capital of France?",
    "Hello! My name is Ada.",
)
REPLIES_AT_ONCE = 16  # more than these wait their turn
Updates = tuple[Any, ...]  # of the components in `outputs`


def build(models: ModelCache, first: Run, runs: Callable[[], list[Run]]) -> gr.Blocks:
    """The whole page. `first` is the run shown at the start; `runs` lists those to choose from, at each visit."""
    tabs: list[tuple[str, Callable[[gr.Blocks], None]]] = [("Chat", lambda page: chat_tab(page, models, first, runs))]
    with gr.Blocks(title=TITLE, analytics_enabled=False, fill_height=True) as page:
        gr.HTML(f"<h1>{TITLE}</h1><p>{SENTENCE}</p>", elem_id="heading")
        if len(tabs) == 1:  # a bar with one tab on it says nothing
            tabs[0][1](page)
        else:
            for name, content in tabs:
                with gr.Tab(name):
                    content(page)
    return page


@dataclass(frozen=True)
class Widgets:
    """What can be seen and pressed in the chat."""

    choice: gr.Dropdown
    about: gr.HTML
    new: gr.Button
    chat: gr.Chatbot
    notice: gr.HTML
    box: gr.Textbox
    temperature: gr.Slider
    seed: gr.Textbox
    max_tokens: gr.Slider


def lay_out(first: Run) -> Widgets:
    """Put the chat's widgets on the page, from top to bottom."""
    with gr.Row(elem_id="run-row"):
        choice = gr.Dropdown(
            [(first.label, str(first.folder))],
            value=str(first.folder),
            label="Model",
            elem_id="run",
            show_label=False,
            container=False,
            scale=0,
            min_width=190,
            filterable=False,
        )
        about = gr.HTML(_about(first), elem_id="about")
        new = gr.Button("New chat", elem_id="new", size="md", scale=0, min_width=110)
    chat = gr.Chatbot(
        elem_id="chat",
        show_label=False,
        scale=1,
        height=None,
        render_markdown=False,
        latex_delimiters=[],
        layout="bubble",
        editable="user",
        buttons=["copy"],
        feedback_options=None,
        placeholder=INVITATION,
        examples=[{"text": text} for text in EXAMPLES],
    )
    notice = gr.HTML("", elem_id="notice", html_template='<div role="status">${value}</div>')
    box = gr.Textbox(
        elem_id="box",
        label="Message",
        show_label=False,
        container=False,
        placeholder="Write a message",
        lines=1,
        max_lines=8,
        autofocus=True,
        submit_btn="Send",
        stop_btn=False,
    )
    with gr.Accordion("Settings", open=False, elem_id="settings"), gr.Row():
        temperature = gr.Slider(
            0, 1.5, Settings.temperature, step=0.05, label="Temperature", info="0 always takes the likeliest word"
        )
        seed = gr.Textbox(
            "", label="Seed", placeholder="new each time", info="A number makes replies repeatable", elem_id="seed"
        )
        max_tokens = gr.Slider(
            16, 2048, Settings.max_tokens, step=16, label="Max tokens", info="The longest reply, in pieces of words"
        )
    return Widgets(choice, about, new, chat, notice, box, temperature, seed, max_tokens)


def chat_tab(page: gr.Blocks, models: ModelCache, first: Run, runs: Callable[[], list[Run]]) -> None:
    """The chat; called inside `page`."""
    on = lay_out(first)
    sessions = Sessions()
    outputs = [on.chat, on.notice, on.box]
    settings = [on.choice, on.temperature, on.seed, on.max_tokens]

    def reply(tab: str, said: Conversation, run: str, *controls: Any) -> Iterator[Updates]:
        """Answer the last turn of `said`. If that fails, the turn is taken back, to where it can be sent again."""
        turn = sessions.begin(tab)
        try:
            turn.keep(said)
            yield show(said), "", gr.update(submit_btn=False, stop_btn="Stop")
            how = read_settings(*controls)
            model = models.get(_find(run, first, runs))
            for growing in answer(model, said, how, turn.stop):
                now = (*said, growing.message) if growing.parts or growing.ending else said
                if not turn.keep(now):
                    break
                yield show(now), status(growing, model.context), ready() if growing.ending else gr.skip()
        except Exception as error:
            if not isinstance(error, UserError):
                traceback.print_exc(file=sys.stderr)
            if turn.keep(said[:-1]):
                yield show(said[:-1]), failure(error), ready(value=said[-1].text)
        # What this turn sent last may reach the page after the words of what replaced it.
        if not turn.is_current():
            yield show(sessions.conversation(tab)), gr.skip(), gr.skip() if sessions.is_busy(tab) else ready()

    def send(values: dict, request: gr.Request) -> Iterator[Updates]:
        if values[on.box].strip():
            yield gr.skip(), gr.skip(), ""
            said = (*sessions.conversation(request.session_hash), user(values[on.box]))
            yield from reply(request.session_hash, said, *(values[control] for control in settings))
        else:
            yield (gr.skip(),) * len(outputs)

    def send_example(values: dict, request: gr.Request, event: gr.SelectData) -> Iterator[Updates]:
        said = (*sessions.conversation(request.session_hash), user(event.value["text"]))
        yield from reply(request.session_hash, said, *(values[control] for control in settings))

    def retry(values: dict, request: gr.Request) -> Iterator[Updates]:
        said = sessions.conversation(request.session_hash)
        while said and said[-1].role == "assistant":
            said = said[:-1]
        if said:
            yield from reply(request.session_hash, said, *(values[control] for control in settings))
        else:
            yield (gr.skip(),) * len(outputs)

    def edit(values: dict, request: gr.Request, event: gr.EditData) -> Iterator[Updates]:
        index = event.index[0] if isinstance(event.index, list | tuple) else event.index
        before = sessions.conversation(request.session_hash)[:index]
        yield from reply(
            request.session_hash, (*before, user(typed(event.value))), *(values[control] for control in settings)
        )

    def stop(request: gr.Request) -> None:
        sessions.stop(request.session_hash)

    def leave(request: gr.Request) -> None:
        sessions.forget(request.session_hash)

    def new_chat(request: gr.Request) -> Updates:
        sessions.forget(request.session_hash)
        return [], "", ready(value="")

    def arrive() -> Any:
        listed = {str(run.folder): run.label for run in (first, *runs())}
        return gr.update(choices=[(label, folder) for folder, label in listed.items()])

    inputs = {on.box, *settings}
    handling: dict[str, Any] = {
        "inputs": inputs,
        "outputs": outputs,
        "concurrency_limit": REPLIES_AT_ONCE,
        "concurrency_id": "replies",
        "show_progress": "hidden",
        "api_visibility": "private",
    }
    on.box.submit(send, trigger_mode="multiple", **handling)  # a message sent meanwhile ends the reply before it
    on.chat.example_select(send_example, **handling)
    on.chat.retry(retry, **handling)
    on.chat.edit(edit, **handling)
    at_once: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}
    on.box.stop(stop, **at_once)
    gr.on([on.new.click, on.chat.clear], new_chat, outputs=outputs, **at_once)
    on.choice.change(lambda run: _about(_find(run, first, runs)), on.choice, on.about, **at_once)
    page.load(arrive, outputs=on.choice, **at_once)
    page.unload(leave)


def ready(**changes: Any) -> dict[str, Any]:
    """The box as it is when a message can be sent."""
    return gr.update(submit_btn="Send", stop_btn=False, **changes)


def read_settings(temperature: Any, seed: Any, max_tokens: Any) -> Settings:
    """Settings from what stands in the page's controls. UserError if that is not a number."""
    seed = str(seed or "").strip()
    if not all(isinstance(value, int | float) for value in (temperature, max_tokens)):
        raise UserError("temperature and max tokens must be numbers: see Settings")
    if seed and not seed.isdecimal():
        raise UserError(f"the seed is “{seed}”: expected a whole number, or nothing for a new one each time")
    return Settings(float(temperature), seed=int(seed) if seed else None, max_tokens=int(max_tokens))


def _about(run: Run) -> str:
    """What is known of a run, as HTML."""
    lines = [describe(run), STAGE_NOTES.get(run.stage or "", "")]
    return "".join(f"<p>{html.escape(line)}</p>" for line in lines if line)


def _find(folder: str, first: Run, runs: Callable[[], list[Run]]) -> Run:
    """The run chosen on the page. Only those that are offered are opened, whatever a request asks for."""
    for run in (first, *runs()):
        if str(run.folder) == folder:
            return run
    raise UserError(f"the model in {folder} is gone: choose another one")
