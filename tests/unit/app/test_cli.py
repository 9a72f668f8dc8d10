import io
import subprocess
import sys
from pathlib import Path

import pytest

from app import cli
from app.reply import ChatModel, Settings
from config.errors import UserError
from data.calculator import CalculatorTool
from data.conversation import user
from data.tokenizer import SPECIALS, Tokenizer
from tests.unit.app.tiny_model import publish_tiny

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return publish_tiny(tmp_path_factory.mktemp("run") / "sft")


def run(*options: str, stdin: bytes = b"") -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "app.cli", *options]
    return subprocess.run(command, cwd=ROOT, input=stdin, capture_output=True, timeout=120)


def test_the_reply_alone_is_on_stdout_and_a_seed_repeats_it(folder: Path):
    options = ("--run", str(folder), "--seed", "3", "--max-tokens", "12")
    one, two = run("-p", "Hello", *options), run(*options, stdin=b"Hello\n")
    assert one.returncode == 0 and one.stderr == b""
    assert one.stdout == two.stdout
    assert one.stdout.endswith(b"\n") and len(one.stdout.decode()) > 1


@pytest.mark.parametrize(
    "options",
    [("-p", "x", "--run", "nowhere"), ("-p", " "), ("-p", "x", "--temperature", "-1"), ("-p", "x", "--seed", "-2"), ()],
)
def test_mistakes_end_in_one_line(options: tuple[str, ...]):
    done = run(*options)
    assert done.returncode == 1 and done.stdout == b""
    assert done.stderr.startswith(b"error: ") and done.stderr.count(b"\n") == 1


def test_stdin_that_is_no_text_is_refused():
    done = run("--max-tokens", "5", stdin=b"caf\xe9")
    assert done.returncode == 1 and b"not UTF-8" in done.stderr


def echo(tok: Tokenizer) -> ChatModel:
    """Says how many messages of the user's it sees, with a calculation before it."""
    tool = CalculatorTool(tok)

    def stream(prompt: list[int], settings: Settings):
        call = tok.encode("1+1")
        yield from (tool.call_start, *call, tool.call_end, tool.output_start, *tool.run(call), tool.output_end)
        yield from tok.encode(f"Message {prompt.count(tok.user_start)} 👍")

    return ChatModel(tok, 400, stream)


@pytest.fixture(scope="module")
def model() -> ChatModel:
    return echo(Tokenizer.train(["aa"], 256 + len(SPECIALS)))


def test_calculator_calls_are_not_printed(model: ChatModel):
    out = io.StringIO()
    cli.say(model, (user("x"),), Settings(), out)
    assert out.getvalue() == "Message 1 👍\n"


def test_what_was_left_out_is_told_on_stderr(model: ChatModel, capsys: pytest.CaptureFixture):
    out = io.StringIO()
    cli.say(model, (user("long " * 200),), Settings(), out)
    assert out.getvalue() == "Message 1 👍\n" and "only its end" in capsys.readouterr().err


def test_a_chat_in_the_terminal_has_turns(
    model: ChatModel, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    lines = iter(["one", "", "two", "/new", "three"])

    def typed(prompt: str) -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    monkeypatch.setattr("builtins.input", typed)
    cli.converse(model, Settings(), "tiny · chat (sft)")
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("Message")] == [
        "Message 1 👍",
        "Message 2 👍",
        "Message 1 👍",
    ]


def test_a_prompt_is_needed():
    with pytest.raises(UserError, match="empty"):
        cli.main(["-p", ""])
