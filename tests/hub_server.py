"""As much of the Hugging Face hub as data sets are read with: their commits, trees, sizes and files.

Faults of `tests.http_server` apply to the files of data alone; `api_faults` are answers of the rest that fail.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from urllib.parse import parse_qs, unquote

from tests.http_server import File, Handler, Server, serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DATA = (".parquet", ".jsonl", ".jsonl.gz", ".txt", ".csv")


class HubServer(Server):
    """`sets`: for each data set's name its files by path."""

    sets: dict[str, dict[str, bytes]]
    api_faults: list[int]
    asked: list[str]


class _HubHandler(Handler):
    server: HubServer

    def do_HEAD(self) -> None:  # noqa: N802 (the base class's name)
        self.do_GET()

    def do_GET(self) -> None:  # noqa: N802 (the base class's name)
        path = unquote(self.path.partition("?")[0])
        self.server.asked.append(f"{self.command} {path}")
        if path.endswith(DATA) and "/resolve/" in path and self.command == "GET":
            super().do_GET()
            return
        self._reply(path, {})

    def do_POST(self) -> None:  # noqa: N802 (the base class's name)
        path = unquote(self.path)
        self.server.asked.append(f"POST {path}")
        content = self.rfile.read(int(self.headers["Content-Length"]))
        self._reply(path, parse_qs(content.decode()))

    def _reply(self, path: str, wanted: dict) -> None:
        if self.server.api_faults:
            self._send(self.server.api_faults.pop(0), b"", {})
            return
        for name, files in self.server.sets.items():
            if path.startswith(f"/datasets/{name}/resolve/"):
                self._file(files, path.split("/resolve/")[1].partition("/")[2])
                return
            start = f"/api/datasets/{name}"
            if path == start or path.startswith(f"{start}/"):
                self._api(name, files, path.removeprefix(start).strip("/"), wanted)
                return
        self._send(HTTPStatus.NOT_FOUND, b"{}", {"X-Error-Code": "RepoNotFound"})

    def _file(self, files: dict[str, bytes], path: str) -> None:
        if path not in files:
            self._send(HTTPStatus.NOT_FOUND, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": COMMIT})
            return
        tag = hashlib.sha1(files[path]).hexdigest()
        self._send(HTTPStatus.OK, files[path], {"X-Repo-Commit": COMMIT, "ETag": f'"{tag}"'})

    def _api(self, name: str, files: dict[str, bytes], rest: str, wanted: dict) -> None:
        what, _, place = rest.partition("/")
        if what in ("", "revision"):
            if place not in ("", "main", "v1", COMMIT):
                self._send(HTTPStatus.NOT_FOUND, b"{}", {"X-Error-Code": "RevisionNotFound"})
                return
            self._json({"id": name, "sha": COMMIT, "siblings": [{"rfilename": path} for path in files]})
        elif what == "tree":
            self._json(_tree(files, place.partition("/")[2], "recursive=true" in self.path.lower()))
        elif what == "paths-info":
            everything = _tree(files, "", True)
            self._json([entry for entry in everything if entry["path"] in wanted["paths"]])
        else:
            self._send(HTTPStatus.NOT_FOUND, b"{}", {})

    def _json(self, value: object) -> None:
        self._send(HTTPStatus.OK, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.close_connection = True
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "Connection": "close", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


def _tree(files: dict[str, bytes], below: str, recursive: bool) -> list[dict]:
    """What lies below a folder, folders too; data files are large files to the hub, others are not."""
    found: dict[str, dict] = {}
    for path, body in sorted(files.items()):
        if below and not path.startswith(f"{below}/"):
            continue
        parts = path.split("/")
        for depth in range(1, len(parts)):
            folder = "/".join(parts[:depth])
            if folder != below and len(folder) > len(below):
                found[folder] = {"type": "directory", "oid": "0" * 40, "size": 0, "path": folder}
        entry = {"type": "file", "oid": hashlib.sha1(body).hexdigest(), "size": len(body), "path": path}
        if path.endswith(DATA):
            digest = hashlib.sha256(body).hexdigest()
            entry["lfs"] = {"oid": digest, "size": len(body), "pointerSize": 130}
        found[path] = entry
    depth = below.count("/") + 1 if below else 0
    return [entry for path, entry in found.items() if recursive or path.count("/") == depth]


@contextmanager
def hub(**sets: dict[str, bytes]) -> Iterator[HubServer]:
    """A hub that has these data sets, `owner__name` each; HF_ENDPOINT is the caller's matter."""
    with serving(_HubHandler) as server:
        server.sets = {name.replace("__", "/"): files for name, files in sets.items()}
        server.api_faults, server.asked = [], []
        for name, files in server.sets.items():
            server.files |= {f"/datasets/{name}/resolve/{COMMIT}/{path}": File(body) for path, body in files.items()}
        yield server
