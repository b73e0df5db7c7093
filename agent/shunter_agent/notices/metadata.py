"""The HTTP side of a source that is asked, as a cloud's metadata service: plain requests, never through a proxy."""

import email.utils
import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import httpx
import msgspec
from shunter.model.errors import Problem, Stalled

from shunter_agent.refusals import retry

LARGEST: Final = 256 * 1024
"""Bytes of an answer that are read: a metadata service never needs more."""
_NOTABLE_S: Final = 2.0
"""Seconds by which clocks must differ to be told apart: the `Date` header has whole seconds, and the answer took some time."""


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """An answer. `ahead` is how far the service's clock is before ours, in seconds; 0 when it doesn't say, or hardly differs."""

    status: int
    text: str
    headers: Mapping[str, str]
    ahead: float = 0.0


class Metadata:
    """One metadata service. From one thread at a time."""

    def __init__(
        self,
        name: str,
        url: str,
        *,
        called: str = "the metadata service",
        largest: int = LARGEST,
        ca: Path | None = None,
        timeout_s: float = 2.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`name` and what it is `called` are for messages; `url` without a path; `largest` answer that is read, in bytes; `ca` for https.

        `clock` gives seconds since the epoch. Raises Stalled SH659 for a certificate authority that can't be read.
        """
        self.name = name
        self.clock = clock
        self._called, self._largest = called, largest
        self._client = httpx.Client(base_url=url, timeout=timeout_s, trust_env=False, follow_redirects=False, verify=_trusted(url, ca))

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def get(self, path: str, headers: Mapping[str, str], *, timeout_s: float | None = None) -> Reply:
        """Ask for a path. Any status is an answer. Raises Retry SH643 when there is none."""
        return self.ask("GET", path, headers, timeout_s=timeout_s)

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], *, body: bytes | None = None, timeout_s: float | None = None
    ) -> Reply:
        """Make a request. `timeout_s` bounds each wait for bytes; None: the usual one. Raises Retry SH643."""
        timeout = self._client.timeout if timeout_s is None else httpx.Timeout(timeout_s)
        try:
            with self._client.stream(method, path, headers=dict(headers), content=body, timeout=timeout) as response:
                data = bytearray()
                for part in response.iter_bytes():
                    data += part
                    if len(data) > self._largest:
                        raise self.silent(f"answers {path} with more than {self._largest} bytes")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self.silent(f"doesn't answer {path}: {error or type(error).__name__}") from error
        ahead = ahead_of(response.headers.get("Date"), self.clock())
        return Reply(status=response.status_code, text=data.decode(errors="replace"), headers=response.headers, ahead=ahead)

    def silent(self, why: str) -> Exception:
        """Retry SH643: no notice can be seen now."""
        remedy = "Check that it can be reached from this node; a cloud's, by its link-local route and the instance's metadata options"
        return retry("SH643", f"{self._called} {why}", remedy, self.name)

    def unreadable(self, path: str, reply: Reply, why: str) -> Exception:
        """Retry SH644: it answered, but nothing that can be understood. What it said stays out of the log but for its size."""
        what = f"the answer of {self._called} to {path} can't be read ({reply.status}, {len(reply.text)} characters): {why}"
        return retry("SH644", what, "Look at the answer with curl on the node; the provider may have changed it", self.name)


def _trusted(url: str, ca: Path | None) -> ssl.SSLContext | bool:
    if not url.startswith("https:"):
        return False  # there is no TLS, and reading a hundred authorities for it takes its time
    if ca is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:  # an SSLError is one
        problem = Problem(
            code="SH659",
            what=f"the certificate authority of a source of notices can't be read: {error}",
            remedy="Check its `ca` in the agent's settings",
            subject=str(ca),
        )
        raise Stalled(problem) from error


def ahead_of(date: str | None, now: float) -> float:
    """By how many seconds the clock of whoever answered with this `Date` is before ours; 0 when it doesn't say, or hardly differs."""
    if date is None:
        return 0.0
    try:
        ahead = email.utils.parsedate_to_datetime(date).timestamp() - now
    except ValueError:
        return 0.0
    return ahead if abs(ahead) > _NOTABLE_S else 0.0
