"""Headless Chromium and a served page. Every test here also fails on a console error or a request off the machine."""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import BrowserContext, Page, sync_playwright

from tests.browser import scripted

ROOT = Path(__file__).resolve().parents[2]
SECONDS_TO_START = 60
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]


def chromium() -> str | None:
    """Path of the Chromium that is installed."""
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def require_chromium() -> str:
    """Path of Chromium. Where there is none the test is skipped, but under CI=true it fails."""
    found = chromium()
    if found:
        return found
    reason = "no Chromium here: install Debian's package `chromium`"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


@dataclass
class Server:
    """A page being served by another process."""

    url: str
    folder: Path
    process: subprocess.Popen


@contextmanager
def serving(module: str, folder: Path, *options: str) -> Iterator[Server]:
    """Run `python -m module options` on a free port until the block ends, once it answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = folder / "server.log"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module, *options, "--port", str(port)]
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}/"
        deadline = time.monotonic() + SECONDS_TO_START
        while not answers(url):
            assert process.poll() is None, f"the page ended:\n{log.read_text()}"
            assert time.monotonic() < deadline, f"the page did not come up:\n{log.read_text()}"
            time.sleep(0.1)
        yield Server(url, folder, process)
    finally:
        process.terminate()
        process.wait(timeout=20)


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=5).close()
    except urllib.error.HTTPError:
        return True  # it asks for a password
    except OSError:
        return False
    return True


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The page with the scripted model."""
    folder = tmp_path_factory.mktemp("page")
    scripted.publish(folder)
    with serving("tests.browser.scripted", folder, str(folder)) as server:
        yield server


@pytest.fixture(scope="session")
def browser() -> Iterator[BrowserContext]:
    """One visitor's Chromium, whose cache serves all tests: the page's 60 files are read once."""
    executable = require_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, headless=True, args=CHROMIUM_FLAGS)
        yield browser.new_context()
        browser.close()


@dataclass
class Tab:
    """A visitor's tab: what people do on the page, and what they see."""

    page: Page
    faults: list[str] = field(default_factory=list)

    def send(self, text: str) -> None:
        """Type a message and press Enter."""
        self.expect_reply()
        self.page.fill("#box textarea", text)
        self.page.press("#box textarea", "Enter")

    def ask(self, text: str) -> str:
        """Send a message, wait for the whole reply and return its text."""
        self.send(text)
        return self.finish()

    def expect_reply(self) -> None:
        """Call before what starts a reply, so that `finish` does not take the last one's end for its end."""
        self.page.evaluate("() => document.querySelectorAll('#notice .facts').forEach(it => it.className = 'old')")

    def finish(self) -> str:
        """Wait until no reply is being written; the last one's text."""
        self.page.wait_for_selector("#notice .facts", timeout=15_000)
        self.page.wait_for_selector("#box .submit-button")
        return self.replies()[-1]

    def replies(self) -> list[str]:
        return [plain(bubble.inner_text()) for bubble in self.page.query_selector_all("#chat .bot.message")]

    def questions(self) -> list[str]:
        return [plain(bubble.inner_text()) for bubble in self.page.query_selector_all("#chat .user.message")]

    def notice(self) -> str:
        return self.page.inner_text("#notice")

    def setting(self, label: str, value: str) -> None:
        """Open Settings and type into one of its fields."""
        if not self.page.is_visible("#seed input, #seed textarea"):
            self.page.click("#settings >> text=Settings")
            self.page.wait_for_selector("#seed input, #seed textarea")
            time.sleep(0.3)  # Gradio sets the fields once more just after they have appeared
        self.page.get_by_label(label).last.fill(value)
        self.page.get_by_label(label).last.press("Tab")

    def record(self) -> None:
        """From now on keep every text that the last reply goes through, with the time of it (ms)."""
        self.page.evaluate(
            """() => {
                window.seen = [];
                const look = () => {
                    const bubbles = document.querySelectorAll("#chat .bot.message");
                    const text = bubbles.length ? bubbles[bubbles.length - 1].innerText : "";
                    if (!seen.length || seen[seen.length - 1][1] !== text) seen.push([performance.now(), text]);
                };
                new MutationObserver(look).observe(
                    document.querySelector("#chat"), {childList: true, subtree: true, characterData: true});
            }"""
        )

    def seen(self) -> list[tuple[float, str]]:
        return [(at, plain(text)) for at, text in self.page.evaluate("() => window.seen") if text]


def plain(text: str) -> str:
    """Without the invisible character that keeps HTML from being seen."""
    return text.replace("\u2060", "")


@pytest.fixture
def visit(browser: BrowserContext, server: Server) -> Iterator[Callable[..., Tab]]:
    """Opens tabs. At the end none of them may have met a fault."""
    tabs = []

    def visit(url: str = server.url, width: int = 1000, height: int = 760) -> Tab:
        page = browser.new_page()
        page.set_viewport_size({"width": width, "height": height})
        page.set_default_timeout(15_000)
        tab = Tab(page)
        tabs.append(tab)
        page.on("console", lambda message: message.type == "error" and tab.faults.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: tab.faults.append(f"script: {error}"))
        page.on("request", lambda request: leaves(request.url) and tab.faults.append(f"off the machine: {request.url}"))
        page.on("response", lambda reply: reply.status >= 400 and tab.faults.append(f"{reply.status}: {reply.url}"))
        page.goto(url)
        page.wait_for_selector("#box textarea")
        page.wait_for_selector("#chat .example")
        return tab

    yield visit
    faults = [fault for tab in tabs for fault in tab.faults]
    for tab in tabs:
        tab.page.close()
    assert not faults
    outside = server.folder / scripted.OUTSIDE
    assert not outside.exists(), outside.read_text()


def leaves(url: str) -> bool:
    """Whether a request goes to another machine."""
    parts = urlsplit(url)
    return parts.scheme in ("http", "https", "ws", "wss") and parts.hostname != "127.0.0.1"


@pytest.fixture
def tab(visit: Callable[..., Tab]) -> Tab:
    return visit()
