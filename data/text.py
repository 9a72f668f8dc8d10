"""Small things about text that readers and the tokenizer share."""


def clean_text(text: str) -> str:
    """`text` with lone surrogates (JSON's "\\ud83d" without its other half) replaced by U+FFFD: UTF-8 lacks them."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def shortened(value: object, limit: int = 160) -> str:
    """`value` on one line, cut in the middle of a long one, to be shown in an error."""
    text = " ".join(str(value).split())
    return text if len(text) <= limit else f"{text[: limit * 2 // 3]} … {text[-(limit // 4) :]}"


def readable_size(size: float) -> str:
    """A number of bytes as people read it: 812 B, 3.4 MB, 1.2 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
