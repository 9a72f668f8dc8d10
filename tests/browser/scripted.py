"""The chat page with a scripted model in place of a trained one: `python -m tests.browser.scripted FOLDER [options]`.

The model has no weights. It answers by rules, a byte a token, at a set pace, so that browser tests are fast and
always see the same words. FOLDER is the repository root that the page believes in: runs are looked for below it.
"""

import itertools
import json
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from app import chat
from app.reply import ChatModel, Settings
from config.errors import run_main
from data.calculator import CalculatorTool
from data.tokenizer import SPECIALS, Tokenizer

CONTEXT = 600  # bytes, in effect
PROFILE = "demo"
STAGES = ("pretrain", "midtrain", "sft")
OUTSIDE = "outside.log"
STORY = " ".join(f"word{number}" for number in range(1, 400))
EMOJI = "👩‍🚀 flies to 🌍, says 你好 and naïve ✨"
HAIKU = "An old silent pond\nA frog jumps into the pond\n  Splash! Silence again"
HTML = "<b>bold</b> <img src=x onerror=alert(1)> &lt;tag&gt; **stars** `code`"


def tokenizer() -> Tokenizer:
    """A token for each byte, and the marks."""
    return Tokenizer.train(["aa"], 256 + len(SPECIALS))


def publish(root: Path) -> None:
    """Lay out empty runs as a finished pipeline would, for `find_runs` to find."""
    for stage in STAGES:
        folder = root / "runs" / PROFILE / stage
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(b"")
        facts = {"parameters": 1_049_088, "tokens": 3_000_000}
        (folder / "config.json").write_text(json.dumps({"model": {"context": CONTEXT}, "training": facts}))
    (root / "params.yaml").write_text(f"profile: {PROFILE}\n")


def load(folder: Path) -> ChatModel:
    """The scripted model. Its replies name the stage, where asked for it."""
    tok = tokenizer()
    tool = CalculatorTool(tok)

    def stream(prompt: list[int], settings: Settings) -> Iterator[int]:
        question = tok.decode(prompt[len(prompt) - 1 - prompt[::-1].index(tok.user_start) :])
        pieces, pace = respond(question, prompt.count(tok.user_start), folder.name, settings)
        for piece in itertools.islice(_ids(pieces, tok, tool), settings.max_tokens):
            yield piece
            time.sleep(pace)

    return ChatModel(tok, CONTEXT, stream)


def respond(question: str, turns: int, stage: str, settings: Settings) -> tuple[list[str | tuple[str]], float]:
    """What to say, calculator calls as one-tuples, and seconds to wait after each byte."""
    rules: list[tuple[str, Callable[[re.Match[str]], tuple[list[str | tuple[str]], float]]]] = [
        (
            r"(\d+) \+ (\d+)",
            lambda found: (["Let me work that out. ", (found[0],), f" So it is {_sum(found)}."], 0.002),
        ),
        (r"haiku", lambda _: ([HAIKU], 0.002)),
        (r"story", lambda _: ([STORY], 0.01)),
        (r"emoji", lambda _: ([EMOJI], 0.01)),
        (r"html", lambda _: ([HTML], 0.001)),
        (r"stage", lambda _: ([f"I am {stage}."], 0.001)),
        (r"turns", lambda _: ([f"I see {turns} of your messages."], 0.001)),
        (r"slow", lambda _: (["At last."], 5.0)),
        (r"fail", lambda _: _fail()),
        (r"silent", lambda _: ([], 0.001)),
        (r"dice", lambda _: ([f"I rolled {random.Random(settings.seed).randrange(10**9)}."], 0.001)),
    ]
    for pattern, rule in rules:
        found = re.search(pattern, question)
        if found:
            return rule(found)
    return [f"You said: {question}"], 0.002


def _sum(found: re.Match[str]) -> int:
    return int(found[1]) + int(found[2])


def _fail() -> tuple[list[str | tuple[str]], float]:
    raise RuntimeError("out of <i>memory</i>\nand a second line")


def _ids(pieces: list[str | tuple[str]], tok: Tokenizer, tool: CalculatorTool) -> Iterator[int]:
    for piece in pieces:
        if isinstance(piece, str):
            yield from tok.encode(piece)
        else:
            call = tok.encode(piece[0])
            yield from (tool.call_start, *call, tool.call_end, tool.output_start, *tool.run(call), tool.output_end)


def watch_connections(log: Path) -> None:
    """Note in `log` every address off this machine that the process connects to or looks up."""
    here = ("127.", "::1", "localhost", "0.0.0.0")

    def hook(event: str, args: tuple) -> None:
        host = None
        if event == "socket.connect" and isinstance(args[1], tuple):
            host = args[1][0]
        elif event == "socket.getaddrinfo":
            host = args[0]
        if host is not None and not str(host).startswith(here):
            with log.open("a") as file:
                file.write(f"{event} {host}\n")

    sys.addaudithook(hook)


def main(argv: list[str]) -> int:
    watch_connections(Path(argv[0]) / OUTSIDE)
    return chat.main(argv[1:], load=load, root=Path(argv[0]))


if __name__ == "__main__":
    run_main(lambda: main(sys.argv[1:]))
