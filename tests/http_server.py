"""A local HTTP server that does what it is told, wrong things included, and remembers what it was asked."""

import hashlib
import socketserver
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler
from socket import SO_LINGER, SOL_SOCKET

import pytest


@dataclass(frozen=True)
class File:
    """What the server has at a path. `etag` "" means none; without `ranges` it always sends the whole."""

    body: bytes
    etag: str | None = None  # from the body
    ranges: bool = True
    if_range: bool = True  # look at If-Range, as a server has to

    @property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.body).hexdigest()[:12]}"' if self.etag is None else self.etag


@dataclass(frozen=True)
class Fault:
    """What is wrong with one answer; what isn't given is right. A header with None is left out."""

    status: int | None = None
    headers: dict[str, str | None] = field(default_factory=dict)
    body: bytes | None = None
    cut: int | None = None  # bytes of the body that are sent
    stall: bool = False  # then hold the connection open and send nothing, until `release`
    reset: bool = False  # then end it with an error
    silent: bool = False  # hang up without a word


class Server(socketserver.ThreadingMixIn, socketserver.TCPServer):
    """`files` by path; `faults` are used up one a request, the `lasting` one for all that follow."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, handler: type["Handler"] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), handler or Handler)
        self.files: dict[str, File] = {}
        self.faults: list[Fault] = []
        self.lasting = Fault()
        self.requests: list[tuple[str, Message]] = []
        self.release = threading.Event()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{path}"

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is what the tests are about."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        server = self.server
        server.requests.append((self.path, self.headers))
        fault = server.faults.pop(0) if server.faults else server.lasting
        self.close_connection = True
        if fault.silent:
            return
        status, headers, body = self._honest(server.files.get(self.path.partition("?")[0]))
        if fault.body is not None:
            body = fault.body
        headers = {"Content-Length": str(len(body)), "Connection": "close", **headers, **fault.headers}
        self.send_response(fault.status or status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[: fault.cut])
        self.wfile.flush()
        if fault.stall:
            server.release.wait()
        if fault.reset:
            self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))

    def _honest(self, file: File | None) -> tuple[int, dict[str, str | None], bytes]:
        if file is None:
            return 404, {}, b"no such file"
        headers: dict[str, str | None] = {"ETag": file.tag or None}
        asked = self.headers.get("Range")
        same = not file.if_range or self.headers.get("If-Range") in (None, file.tag)
        if not asked or not file.ranges or not same:
            return 200, headers, file.body
        start = int(asked.removeprefix("bytes=").removesuffix("-"))
        if start >= len(file.body):
            return 416, {"Content-Range": f"bytes */{len(file.body)}"}, b""
        place = f"bytes {start}-{len(file.body) - 1}/{len(file.body)}"
        return 206, {**headers, "Content-Range": place}, file.body[start:]


@contextmanager
def serving(handler: type[Handler] | None = None) -> Iterator[Server]:
    """A server in a thread of its own, asked directly whatever proxy the environment names."""
    server = Server(handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("no_proxy", "127.0.0.1")
            yield server
    finally:
        server.release.set()
        server.shutdown()
        thread.join()
        server.server_close()
