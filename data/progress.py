"""One line that shows how far a long job is: live on a terminal, silent in a log."""

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.status import Status

from data.text import readable_size

_INTERVAL = 0.5  # seconds between updates


class Progress:
    """Counts documents, tokens and bytes of text; prints a summary when it ends without an error."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._console = Console(stderr=True)
        self._status = Status(f"{title} …", console=self._console)
        self._documents = self._tokens = self._bytes = 0
        self._started = self._shown = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._status.start()
        return self

    def advance(self, tokens: int, text_bytes: int) -> None:
        """Count a document."""
        self._documents += 1
        self._tokens += tokens
        self._bytes += text_bytes
        now = time.monotonic()
        if now - self._shown > _INTERVAL:
            self._shown = now
            self._status.update(self._line(now))

    def _line(self, now: float) -> str:
        rate = self._bytes / max(now - self._started, 1e-9)
        return (
            f"{self._title}: {self._documents:,} documents, {self._tokens:,} tokens, "
            f"{readable_size(self._bytes)} of text at {readable_size(rate)}/s"
        )

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._status.stop()
        if kind is None and self._documents:
            self._console.print(self._line(time.monotonic()), highlight=False, soft_wrap=True)
