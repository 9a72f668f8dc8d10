"""One HTTP request: the answer, or what went wrong, sorted into what may pass and what is final."""

import http.client
import ssl
import urllib.error
import urllib.request
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus

from config.errors import UserError
from data.urls import authorization, request_url, shown_url

_CHUNK = 1 << 20  # bytes of one read at most
_PASSING = (HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)


class FailedError(Exception):
    """A request that failed and may be repeated: the answer's status, if there was one, and the seconds to wait that
    the server asked for."""

    def __init__(self, text: str, status: int | None = None, wait: float = 0.0) -> None:
        super().__init__(text)
        self.status, self.wait = status, wait


def open_url(url: str, headers: dict[str, str], timeout: float, bearer: str | None = None) -> http.client.HTTPResponse:
    """The server's answer with status 200 or 206, after redirects, its body unread and as it was sent.

    `timeout` is in seconds, to connect and for each read. User and password, or the token `bearer`, go to the
    URL's own host alone. Raises FailedError where another attempt may help, otherwise UserError; neither shows more of
    the URL than `shown_url`.
    """
    headers = {"Accept-Encoding": "identity", "User-Agent": "tandem", **headers}
    request = urllib.request.Request(request_url(url), headers=headers)
    if secret := f"Bearer {bearer}" if bearer else authorization(url):
        request.add_unredirected_header("Authorization", secret)
    try:
        response = _opener().open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        response = error
    except (OSError, http.client.HTTPException) as error:
        raise _network_error(url, error, timeout) from None
    status = response.status
    if status in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        return response
    response.close()
    described = f"the server answers {status} {http.client.responses.get(status, '')}".rstrip()
    if status >= 500 or status in _PASSING:
        raise FailedError(described, status, _asked_wait(response.headers.get("Retry-After", "")))
    raise UserError(f"{shown_url(url)}: {described}, expected the file; correct the URL, or ask for access to it")


def read_some(url: str, response: http.client.HTTPResponse, timeout: float) -> bytes:
    """What has come of the body, at most 1 MiB; nothing at its end. Raises what `open_url` does."""
    try:
        return response.read1(_CHUNK)
    except (OSError, http.client.HTTPException) as error:
        raise _network_error(url, error, timeout) from None


def _opener() -> urllib.request.OpenerDirector:
    """Opens http and https, through the environment's proxies; a redirect to anything else is left as the answer."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPHandler(),
        urllib.request.HTTPSHandler(),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener


def _network_error(url: str, error: Exception, timeout: float) -> FailedError:
    """What went wrong, in words that hold nothing of the URL. Raises UserError where another attempt can't help."""
    reason = getattr(error, "reason", None)
    cause = reason if isinstance(reason, Exception) else error
    if isinstance(cause, ssl.SSLCertVerificationError):
        raise UserError(
            f"{shown_url(url)}: the server's certificate is not trusted ({cause.verify_message}); "
            "correct the URL, or this machine's clock or certificates"
        )
    if isinstance(cause, TimeoutError):
        return FailedError(f"nothing came from the server for {timeout:g} s")
    if isinstance(cause, OSError):
        return FailedError(f"the connection failed ({cause.strerror or type(cause).__name__})")
    return FailedError(f"the server's answer breaks off or is not HTTP ({type(cause).__name__})")


def _asked_wait(value: str) -> float:
    """The seconds that a Retry-After header asks for: a number, or a date."""
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return 0.0
