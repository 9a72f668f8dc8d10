"""Numbers as people read them."""

import math
from datetime import UTC, datetime

THIN = "\u202f"  # narrow no-break space, between a number and its unit
NBSP = "\u00a0"


def si(value: float) -> str:
    """1,234,000 as "1.23 M": k, M, B, T."""
    if not math.isfinite(value):
        return "n/a"
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * size:
            return f"{_digits(value / size)}{THIN}{unit}"
    return _digits(value)


def plain(value: float) -> str:
    """A figure for reading: three digits that count, k and M for the large ones."""
    return si(value) if abs(value) >= 1e4 else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


def _digits(value: float) -> str:
    """Three digits that count, without trailing zeros or an exponent where it can be helped."""
    text = f"{value:.3g}"
    return f"{value:,.0f}" if "e" in text and abs(value) >= 1 else text


def percent(share: float | None, digits: int = 1) -> str:
    """0.974 as "97.4 %"."""
    return "n/a" if share is None else f"{100 * share:.{digits}f}{NBSP}%"


def duration(seconds: float) -> str:
    """6 d 21 h, 2 h 5 min, 5 min 7 s, 12.3 s."""
    if not 0 <= seconds < 1e10:
        return "n/a"
    if seconds < 59.95:
        return f"{seconds:.1f}{NBSP}s"
    whole = round(seconds)
    for size, name, small_size, small in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            return f"{whole // size}{NBSP}{name} {whole % size // small_size}{NBSP}{small}"
    return f"{whole}{NBSP}s"


def date(unix: float) -> str:
    """A unix time as UTC; the reader's own time zone would change the page's bytes from machine to machine."""
    try:
        return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return "at an unknown time"
