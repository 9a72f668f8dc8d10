"""What a run says about itself: events as JSON lines first, one progress line for the person who watches."""

import json
import sys
import time
from pathlib import Path
from typing import Any

from config.files import finite, raise_if_disk_full, write_atomic

PLAIN_INTERVAL_S = 10  # between progress lines where they can't overwrite each other


class Telemetry:
    """Writes the events of one stage; on ranks other than the first it writes nothing."""

    def __init__(self, path: Path, stage: str, active: bool) -> None:
        self.path, self.stage, self.active = path, stage, active
        self._overwrites = sys.stdout.isatty()
        self._printed_at = float("-inf")
        self._open_line = False

    def rewind(self, step: int) -> None:
        """Drop what was written after update `step`: a resumed run writes it again. At 0 nothing is kept."""
        if not self.active or not self.path.exists():
            return
        if step == 0:
            self.path.unlink()
            return
        kept = []
        for line in self.path.read_text(encoding="utf-8").split("\n"):
            try:
                if json.loads(line).get("step", 0) <= step:
                    kept.append(line)
            except json.JSONDecodeError:
                continue  # the line that a kill cut short
        write_atomic(self.path, "".join(f"{line}\n" for line in kept))

    def event(self, kind: str, **values: Any) -> None:
        """Append one event. Raises UserError when the disk is full."""
        if not self.active:
            return
        line = json.dumps(finite({"event": kind, "time": round(time.time(), 3), **values}), ensure_ascii=False) + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError as error:
            raise_if_disk_full(error, self.path.parent, len(line))
            raise

    def say(self, text: str) -> None:
        """Print a line of its own."""
        if self.active:
            self._end_line()
            print(text, flush=True)

    def progress(self, text: str, last: bool = False) -> None:
        """Show the progress line: in place on a terminal, every few seconds elsewhere."""
        if not self.active:
            return
        if self._overwrites:
            print(f"\r\033[K{text}", end="\n" if last else "", flush=True)
            self._open_line = not last
        elif last or time.monotonic() - self._printed_at >= PLAIN_INTERVAL_S:
            print(text, flush=True)
            self._printed_at = time.monotonic()

    def _end_line(self) -> None:
        if self._open_line:
            print(flush=True)
            self._open_line = False


def progress_line(stage: str, values: dict[str, Any]) -> str:
    """`pretrain 1,200/3,400  35 %  loss 2.131  41.2 k tok/s  0.24 TFLOP/s  1:23 left`."""
    done, total = values["step"], values["updates"]
    return (
        f"{stage} {done:,}/{total:,}  {100 * done / total:.0f} %  loss {values['loss']:.3f}  "
        f"{values['tok_s'] / 1e3:,.1f} k tok/s  {values['tflops']:,.2f} TFLOP/s  {duration(values['eta_s'])} left"
    )


def duration(seconds: float) -> str:
    """`1:23`, `2:03:04`, `3 d 04:05`."""
    whole = max(0, round(seconds))
    days, rest = divmod(whole, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days} d {hours:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{left:02d}" if hours else f"{minutes}:{left:02d}"


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a file; a last line that was cut short is left out."""
    events = []
    for line in path.read_text(encoding="utf-8").split("\n"):
        try:
            events.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return events
