import socket
import subprocess
import sys
from pathlib import Path

import pytest

from app.chat import is_loopback, parse, require_free
from app.page import read_settings
from app.reply import Settings
from config.errors import UserError

ROOT = Path(__file__).resolve().parents[3]


def test_the_page_is_for_this_machine_by_default():
    options = parse([])
    assert (options.host, options.port, options.run, options.password) == ("127.0.0.1", 7860, None, None)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1"])
def test_loopback_needs_no_password(host: str):
    assert is_loopback(host) and parse(["--host", host]).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "my-machine", ""])
def test_another_address_needs_a_password_or_no_auth(host: str):
    assert not is_loopback(host)
    with pytest.raises(UserError, match="--password"):
        parse(["--host", host])
    assert parse(["--host", host, "--password", "sesame"]).password == "sesame"
    assert parse(["--host", host, "--no-auth"]).no_auth


def test_an_empty_password_is_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("getpass.getpass", lambda prompt: "")
    with pytest.raises(UserError, match="empty"):
        parse(["--host", "0.0.0.0", "--password"])
    monkeypatch.setattr("getpass.getpass", lambda prompt: "typed")
    assert parse(["--host", "0.0.0.0", "--password"]).password == "typed"


def test_password_and_no_auth_exclude_each_other(capsys: pytest.CaptureFixture):
    with pytest.raises(SystemExit):
        parse(["--password", "x", "--no-auth"])


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port {port} is in use.*--port"):
            require_free("127.0.0.1", port)
    require_free("127.0.0.1", port)


def test_an_address_elsewhere_is_refused():
    with pytest.raises(UserError, match=r"can't listen on 192\.0\.2\.1"):
        require_free("192.0.2.1", 7860)
    with pytest.raises(UserError, match="1 to 65535"):
        parse(["--port", "0"])


@pytest.mark.parametrize("options", [["--run", "nowhere"], ["--host", "0.0.0.0"], ["--port", "99999"]])
def test_mistakes_end_in_one_line(options: list[str]):
    done = subprocess.run(
        [sys.executable, "-m", "app.chat", *options], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_importing_the_command_imports_neither_torch_nor_gradio():
    check = "import sys, app.chat, app.cli; assert not {'torch', 'gradio'} & set(sys.modules), 'slow start'"
    subprocess.run([sys.executable, "-c", check], cwd=ROOT, check=True, timeout=60)


def test_settings_are_read_from_the_page():
    assert read_settings(0.5, "", 64) == Settings(0.5, seed=None, max_tokens=64)
    assert read_settings(0, " 12 ", 64.0) == Settings(0.0, seed=12, max_tokens=64)
    for wrong in ((None, "", 64), (0.5, "x", 64), (0.5, "-1", 64), (0.5, "1.5", 64), (0.5, "9" * 30, 64), (9, "", 64)):
        with pytest.raises(UserError):
            read_settings(*wrong)
