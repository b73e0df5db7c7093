"""A forge's API over HTTP: one deadline for all of it, waits as long as the forge says, and the token goes nowhere else."""

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpx

from shunter.model.errors import Problem, Rejected, Retry, Unknown

_TIMEOUT_S: Final = 20.0
"""For one request."""
_WAIT_S: Final = 1.0
_LONGEST_WAIT_S: Final = 30.0
_PAGES: Final = 200
_SHOWN: Final = 200
_LOCAL: Final = frozenset(("localhost", "127.0.0.1", "::1"))
_WHY: Final = {
    401: "Give a token that is still good",
    403: "Give the token the right to comment; a pipeline of a fork has none: its page is in the pipeline's summary instead",
    404: "Check the project and the number; a token that may not see a private project is answered so as well",
    413: "The comment is too long",
    422: "The forge doesn't take this text, or the conversation is locked",
}


class Api:
    """Requests below `url`. Use it as a context manager.

    `headers` carry the token; they are sent to `url`'s host only, and over http to this machine only. `within_s` is for all requests
    together, waits included. `clock` is monotonic.
    """

    def __init__(
        self,
        url: str,
        headers: Mapping[str, str],
        *,
        within_s: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raises Rejected SH982 for a URL that the token mustn't be sent to."""
        parts = urlsplit(url)
        self.where = f"{parts.hostname}{parts.path}"
        if parts.scheme != "https" and not (parts.scheme == "http" and parts.hostname in _LOCAL):
            what = "the forge's API isn't reached over https, and the token would be readable on the way"
            raise Rejected(Problem(code="SH982", what=what, remedy="Give an https:// URL with --api", subject=self.where))
        self._base, self._origin = url.rstrip("/"), (parts.scheme, parts.netloc)
        self._clock, self._sleep = clock, sleep
        self._until = clock() + within_s
        secure = parts.scheme == "https"  # else there is nothing to verify, and loading what it takes is slow
        self._http = httpx.Client(headers=dict(headers), timeout=_TIMEOUT_S, follow_redirects=False, trust_env=True, verify=secure)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, *, refused: tuple[int, ...] = ()) -> Any:  # noqa: ANN401  (JSON)
        """What is there; None for one of the statuses in `refused`."""
        reply = self._again("GET", self._base + path)
        return None if reply.status_code in refused else self._json(self._accepted(reply))

    def all(self, path: str) -> Iterator[Any]:
        """The entries of a list, page by page, as the Link header leads. Raises Rejected SH983 when it leads to another host."""
        url: str | None = self._base + path
        for _ in range(_PAGES):
            if url is None:
                return
            reply = self._accepted(self._again("GET", url))
            entries = self._json(reply)
            if not isinstance(entries, list):
                raise self._strange("a list was expected")
            yield from entries
            url = reply.links.get("next", {}).get("url")
            if url is not None and tuple(urlsplit(url)[:2]) != self._origin:
                raise self._strange("the next page would be on another host")
        raise self._strange(f"there are more than {_PAGES} pages")

    def post(self, path: str, body: object) -> None:
        """Once. Raises Unknown SH985 when there is no answer, or one that doesn't say whether it was done: with some time let pass, so that
        the next look can see it.
        """
        try:
            reply = self._http.request("POST", self._base + path, json=body)
        except httpx.HTTPError as error:
            self._pause(None, 0)
            raise self._unknown(type(error).__name__) from error
        if reply.status_code >= 500 or _wait_told(reply) is not None:
            self._pause(_wait_told(reply), 0)
            raise self._unknown(f"it answered {reply.status_code}")
        self._accepted(reply)

    def put(self, method: str, path: str, body: object | None, *, gone: tuple[int, ...] = (404, 410)) -> bool:
        """Do what may be done again. False: what it is about is gone."""
        reply = self._again(method, self._base + path, body)
        if reply.status_code in gone:
            return False
        self._accepted(reply)
        return True

    def _again(self, method: str, url: str, body: object | None = None) -> httpx.Response:
        """Ask until there is an answer that stays. Raises Retry SH984 when the time is over."""
        said, tries = "", 0
        while True:
            wait = None
            try:
                reply = self._http.request(method, url, json=body) if body is not None else self._http.request(method, url)
                wait = _wait_told(reply)
                if reply.status_code < 500 and wait is None:
                    return reply
                said = f"it answered {reply.status_code}"
            except httpx.HTTPError as error:
                said = f"{type(error).__name__}: {error}"
            if not self._pause(wait, tries):
                what = f"the forge gave no answer in time: {said}"
                raise Retry(Problem(code="SH984", what=what, remedy="Run it again later", subject=self.where))
            tries += 1

    def _pause(self, told: float | None, tries: int) -> bool:
        """Wait as long as the forge said (seconds), or longer from try to try. False: there is no time left for it."""
        wait = told if told is not None else min(_LONGEST_WAIT_S, _WAIT_S * 2**tries) * random.uniform(0.5, 1.0)  # noqa: S311
        if self._clock() + wait > self._until:
            return False
        self._sleep(wait)
        return True

    def _accepted(self, reply: httpx.Response) -> httpx.Response:
        if 200 <= reply.status_code < 300:
            return reply
        what = f"the forge refused: it answered {reply.status_code} ({_told(reply)})"
        raise Rejected(Problem(code="SH986", what=what, remedy=_WHY.get(reply.status_code, "Look at what it says"), subject=self.where))

    def _json(self, reply: httpx.Response) -> Any:  # noqa: ANN401
        try:
            return reply.json()
        except ValueError as error:
            raise self._strange("it isn't JSON") from error

    def _strange(self, why: str) -> Rejected:
        return Rejected(
            Problem(code="SH983", what=f"the forge's answer can't be used: {why}", remedy="Check the URL of its API", subject=self.where)
        )

    def _unknown(self, said: str) -> Unknown:
        what = f"it isn't known whether the comment was posted: {said}"
        return Unknown(Problem(code="SH985", what=what, remedy="Run it again: it looks first", subject=self.where))


def _wait_told(reply: httpx.Response) -> float | None:
    """Seconds that a forge that has had too much asks to wait; None: it doesn't. GitHub says so with 403 as well."""
    if reply.status_code not in (403, 429, 503):
        return None
    after = reply.headers.get("retry-after", "")
    if after.isdigit():
        return float(after)
    reset = reply.headers.get("x-ratelimit-reset", "")
    if reply.headers.get("x-ratelimit-remaining") == "0" and reset.isdigit():
        return max(0.0, float(reset) - time.time())
    return _WAIT_S if reply.status_code == 429 else None


def _told(reply: httpx.Response) -> str:
    """The forge's own words."""
    try:
        said = reply.json()
        text = said.get("message") or said.get("error") or "" if isinstance(said, dict) else ""
    except ValueError:
        text = ""
    text = text if isinstance(text, str) else json.dumps(text)
    return " ".join(text.split())[:_SHOWN] or reply.reason_phrase or "no word"
