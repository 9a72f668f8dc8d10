"""URLs of sources: what is sent, what may be shown, and the names that their files get."""

import base64
import hashlib
import re
from urllib.parse import quote, unquote, urlsplit, urlunsplit

from config.errors import UserError


def file_name(url: str) -> str:
    """The name that a URL's file gets: 16 hex digits of the URL's hash, then the last part of its path made safe."""
    parts = urlsplit(request_url(url))
    identity = hashlib.sha256(urlunsplit(parts).encode()).hexdigest()[:16]
    last = unquote(parts.path).replace("\\", "/").rstrip("/").rpartition("/")[2]
    return f"{identity}-{re.sub(r'[^A-Za-z0-9._-]+', '_', last)[-100:] or 'file'}"


def shown_url(url: str) -> str:
    """The URL without what may be secret: user, password, query and fragment."""
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        return "the URL"  # a password with a slash in it, for one, is found anywhere
    host = parts.netloc.rpartition("@")[2]
    shown = f"{parts.scheme}://{host}{parts.path}" if host else parts.path
    return "".join(letter if letter.isprintable() else "?" for letter in shown) + ("?…" if parts.query else "")


def request_url(url: str) -> str:
    """The URL in the form that HTTP wants, without user and password. Raises UserError for any other kind of URL."""
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    except ValueError:  # UnicodeError, of a host's name, is one
        host, port, parts = "", None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or not url.isprintable():
        raise UserError(f"{shown_url(url)}: not a URL to download from; expected http://host/path or https://host/path")
    host = f"[{host}]" if ":" in host else host
    path, query = (quote(part, safe="%/:=&?~+!$,;'@()*[]|") for part in (parts.path or "/", parts.query))
    return urlunsplit((parts.scheme, host if port is None else f"{host}:{port}", path, query, ""))


def authorization(url: str) -> str | None:
    """The header that a URL's user and password make, if it has them."""
    parts = urlsplit(url)
    if parts.username is None:
        return None
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()
