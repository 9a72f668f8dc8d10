"""Serving the page: a real model behind it, a password before it."""

import http.cookiejar
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser import scripted
from tests.browser.conftest import Tab, serving
from tests.unit.app.tiny_model import publish_tiny

pytestmark = pytest.mark.browser


def test_a_real_model_answers(visit: Callable[..., Tab], tmp_path: Path):
    publish_tiny(tmp_path / "runs" / "random" / "sft")
    with serving("app.chat", tmp_path, "--run", str(tmp_path / "runs" / "random")) as server:
        tab = visit(server.url)
        assert "parameters · context 128 tokens" in tab.page.inner_text("#about")
        tab.setting("Max tokens", "48")
        tab.setting("Seed", "5")
        first = tab.ask("Hello there")
        tab.page.click("#new")
        tab.page.wait_for_selector("#chat .example")
        assert tab.ask("Hello there") == first != ""
        for number in range(6):
            tab.ask(f"{number}. And again, please")
        assert "left out" in tab.notice()


def test_a_password_is_asked_for(tmp_path: Path):
    scripted.publish(tmp_path)
    with serving("tests.browser.scripted", tmp_path, str(tmp_path), "--password", "sesame") as server:
        jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        visitor = urllib.request.build_opener(jar)

        def log_in(password: str) -> None:
            form = urllib.parse.urlencode({"username": "ada", "password": password}).encode()
            visitor.open(server.url + "login", form).close()

        for attempt in (None, "wrong"):
            with pytest.raises(urllib.error.HTTPError):
                if attempt:
                    log_in(attempt)
                visitor.open(server.url + "config")
        log_in("sesame")
        with visitor.open(server.url + "config") as reply:
            assert json.load(reply)["title"] == "Tandem"
