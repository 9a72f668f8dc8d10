"""Downloads from the test server into a folder, and what has to hold after one."""

import hashlib
import json
from pathlib import Path

import pytest

from config.errors import UserError
from data.downloads import Patience, fetch
from data.urls import file_name
from tests.http_server import Server

BODY = bytes(range(256)) * 100
CUT = 10_000  # where its transfer breaks off
PATIENCE = Patience(timeout=60.0, attempts=3)


class Getter:
    """`fetch` of one URL into one folder, with the waits noted instead of slept."""

    def __init__(self, server: Server, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.url = server.url("/text.jsonl")
        self.waits: list[float] = []

    def __call__(self, **settings) -> Path:
        return fetch(self.url, self.folder, **{"patience": PATIENCE, "sleep": self.waits.append, **settings})

    def fails(self, *parts: str, **settings) -> str:
        """The one line of the error, which has all `parts`; no file counts after it."""
        with pytest.raises(UserError) as caught:
            self(**settings)
        message = str(caught.value)
        assert all(part in message for part in parts), message
        assert "\n" not in message
        assert not self.path.exists()
        return message

    @property
    def path(self) -> Path:
        return self.folder / file_name(self.url)

    @property
    def part(self) -> Path:
        return self.path.with_name(self.path.name + ".part")

    @property
    def note(self) -> dict:
        return json.loads(self.path.with_name(self.path.name + ".json").read_text())

    @property
    def ranges(self) -> list[str | None]:
        """What each request asked for: None is the whole."""
        return [headers["Range"] for _, headers in self.server.requests]


def assert_whole(get: Getter, body: bytes = BODY) -> None:
    assert get.path.read_bytes() == body
    assert get.note["sha256"] == hashlib.sha256(body).hexdigest()
    assert {file.suffix for file in get.folder.iterdir()} == {get.path.suffix, ".json", ".lock"}  # and no part
    assert get() == get.path
