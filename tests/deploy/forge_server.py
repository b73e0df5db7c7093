"""A forge on this machine: the comments of GitHub's and GitLab's APIs, with pages, rights and faults as the real ones have.

What it leaves out: reactions, edits' history, limits of text, and every path that `shunter comment` doesn't ask.
"""

import json
import re
import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Answer = tuple[int, object, dict[str, str]]


class Forge:
    """Comments of one pull request. `faults` are taken by the next requests that they fit, one each."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.comments: list[dict[str, Any]] = []
        self.token = "good"
        self.may_write = True
        self.knows_me = True
        self.page = 100
        self.asked: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.faults: deque[tuple[str, Callable[[Forge], Answer | None]]] = deque()
        self.next_page_at: str | None = None
        self.lag = 0
        """How many lists are still answered without the newest comment."""
        self._next = 1
        self.lock = threading.Lock()

    @property
    def me(self) -> str:
        return "github-actions[bot]" if not self.knows_me else "shunter-bot"

    def add(self, body: str, who: str | None = None, **more: Any) -> int:
        with self.lock:
            number, self._next = self._next, self._next + 1
            login = who or self.me
            author = {"login": login, "id": 7 if login == self.me else 8, "username": login}
            self.comments.append({"id": number, "body": body, "user": author, "author": author, "system": False, **more})
            return number

    def bodies(self) -> list[str]:
        return [comment["body"] for comment in self.comments]

    def answer(self, method: str, path: str, query: dict[str, list[str]], body: Any) -> Answer:
        if path == "/user":
            return (200, {"login": self.me, "id": 7}, {}) if self.knows_me else (403, {"message": "Resource not accessible"}, {})
        listing = "/repos/team/policies/issues/12/comments" if self.kind == "github" else "/projects/42/merge_requests/12/notes"
        if path == listing and method == "GET":
            return self._list(path, int(query.get("page", ["1"])[0]))
        if not self.may_write:
            return 403, {"message": "Resource not accessible by integration"}, {}
        if path == listing and method == "POST":
            return 201, {"id": self.add(body["body"])}, {}
        one = re.fullmatch(r"/repos/team/policies/issues/comments/(\d+)|/projects/42/merge_requests/12/notes/(\d+)", path)
        found = one and next((c for c in self.comments if c["id"] == int(one[1] or one[2])), None)
        if not found:
            return 404, {"message": "Not Found"}, {}
        if method in ("PATCH", "PUT"):
            found["body"] = body["body"]
            return 200, found, {}
        if method == "DELETE":
            self.comments.remove(found)
            return 204, None, {}
        return 405, {"message": "no"}, {}

    def _list(self, path: str, page: int) -> Answer:
        shown = self.comments
        if self.lag:
            self.lag -= 1
            shown = shown[:-1]
        some = shown[(page - 1) * self.page : page * self.page]
        more = page * self.page < len(shown)
        base = self.next_page_at or self.url
        return 200, some, {"Link": f'<{base}{path}?per_page=100&page={page + 1}>; rel="next"'} if more else {}

    url = ""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # an answer in one piece: two would wait for an acknowledgement in between
    forge: Forge

    def _any(self) -> None:
        forge = self.forge
        parts = urlsplit(self.path)
        path, size = unquote(parts.path), int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(size)) if size else None
        forge.asked.append((self.command, path))
        forge.headers.append(dict(self.headers))
        answer: Answer | None = None
        for fault in list(forge.faults):
            if fault[0] == self.command:
                forge.faults.remove(fault)
                answer = fault[1](forge)
                if answer is None:  # done, and the line dropped before the answer
                    forge.answer(self.command, path, parse_qs(parts.query), body)
                    self.close_connection = True
                    return
                break
        token = self.headers.get("Authorization", "").removeprefix("Bearer ") or self.headers.get("PRIVATE-TOKEN", "")
        if answer is None and token != forge.token:
            answer = 401, {"message": "Bad credentials"}, {}
        status, said, headers = answer or forge.answer(self.command, path, parse_qs(parts.query), body)
        data = b"" if said is None else json.dumps(said).encode()
        self.send_response(status)
        for name, value in {**headers, "Content-Type": "application/json", "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = _any

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve(forge: Forge) -> Callable[[], None]:
    """Serve it on a port of this machine; returns what stops it."""
    handler = type("Handler", (_Handler,), {"forge": forge})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    forge.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
