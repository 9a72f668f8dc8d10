"""`python -m app.cli -p "…"`: prints the model's reply, alone, on stdout. Without -p, a chat in the terminal."""

import argparse
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from app.reply import Answer, ChatModel, Settings, answer
from app.runs import choose, find_runs, load, open_run
from config.errors import UserError, run_main
from data.conversation import Conversation, user

HELP = "Ctrl-D ends the chat, /new starts another, Ctrl-C stops a reply."


def main(argv: Sequence[str] | None = None) -> int:
    """Answer the prompt given, or what stdin holds, or whoever types at the terminal."""
    parser = argparse.ArgumentParser(prog="python -m app.cli", description="Ask the model you trained.")
    parser.add_argument("--run", type=Path, metavar="DIR", help="model to ask, e.g. runs/tiny/sft")
    parser.add_argument("-p", "--prompt", help="what to ask; without it, stdin, or a chat in the terminal")
    parser.add_argument("--temperature", type=float, default=Settings.temperature, help="0 takes the likeliest word")
    parser.add_argument("--top-k", type=int, default=Settings.top_k, help="draw from the K likeliest; 0 is off")
    parser.add_argument("--seed", type=int, help="makes the reply repeatable; a new one each time without it")
    parser.add_argument("--max-tokens", type=int, default=Settings.max_tokens, help="the longest reply")
    options = parser.parse_args(argv)

    settings = Settings(options.temperature, options.top_k, options.seed, options.max_tokens)
    typing = options.prompt is None and sys.stdin.isatty()
    prompt = "" if typing else read_stdin() if options.prompt is None else options.prompt
    if not typing and not prompt.strip():
        raise UserError('the prompt is empty: give one with -p "…"')
    run = open_run(options.run) if options.run else choose(find_runs())
    sys.stdout.reconfigure(encoding="utf-8")  # a model may write any character, whatever the terminal's locale
    try:
        if typing:
            converse(load(run.folder), settings, run.label)
        else:
            say(load(run.folder), (user(prompt),), settings, sys.stdout)
    except BrokenPipeError:  # the reader, such as `head`, has had enough: let what is still buffered go nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def read_stdin() -> str:
    """All of stdin as a prompt. UserError if it is no UTF-8 text."""
    try:
        return sys.stdin.buffer.read().decode("utf-8").rstrip("\n")
    except UnicodeDecodeError as error:
        raise UserError(f"stdin is not UTF-8 text (byte {error.start}): convert it first") from None


def say(model: ChatModel, conversation: Conversation, settings: Settings, out: TextIO) -> Answer:
    """Write the reply's text as it comes, then a newline; what was left out of it goes to stderr.

    The calculator's part in it is not shown. Ctrl-C ends the reply and is raised again.
    """
    stop = threading.Event()
    written = ""
    reply = None
    try:
        for reply in answer(model, conversation, settings, stop):
            text = reply.message.text
            out.write(text[len(written) :])
            out.flush()
            written = text
    finally:
        stop.set()
        out.write("\n")
        out.flush()
    if reply.dropped_turns:
        print(f"note: the oldest {reply.dropped_turns} messages no longer fit, and were left out", file=sys.stderr)
    if reply.question_cut:
        print("note: the prompt is longer than the model can read; only its end was used", file=sys.stderr)
    return reply


def converse(model: ChatModel, settings: Settings, label: str) -> None:
    """Chat over several turns until Ctrl-D."""
    import readline  # noqa: F401 (arrow keys and history in input())

    print(f"{label}. {HELP}")
    said: Conversation = ()
    while True:
        try:
            text = input("\nyou> ")
        except (EOFError, KeyboardInterrupt):
            print()
            return
        if text.strip() == "/new":
            said = ()
        elif text.strip():
            asked = (*said, user(text))
            try:
                reply = say(model, asked, settings, sys.stdout)
            except KeyboardInterrupt:
                continue
            said = (*asked, reply.message)


if __name__ == "__main__":
    run_main(main)
