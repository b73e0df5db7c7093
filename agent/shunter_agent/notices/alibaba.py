"""Alibaba Cloud: the time at which a preemptible instance is released, some five minutes ahead; a 404 until there is one."""

from collections.abc import Mapping
from typing import Final

from shunter.model.snapshot import NoticeKind

from shunter_agent.notices.metadata import Metadata
from shunter_agent.notices.port import Notice
from shunter_agent.notices.times import instant
from shunter_agent.notices.watching import Look

URL: Final = "http://100.100.100.200"
EVERY_S: Final = 5.0
_PATH: Final = "/latest/meta-data/instance/spot/termination-time"
_TOKEN: Final = "X-aliyun-ecs-metadata-token"  # noqa: S105  (a header's name)
_TTL_S: Final = 21_600


def looks(service: Metadata) -> tuple[Look, ...]:
    """What to ask Alibaba Cloud."""
    return (Look(name="alibaba", ask=_Alibaba(service).ask, every=EVERY_S),)


class _Alibaba:
    def __init__(self, service: Metadata) -> None:
        self._service = service
        self._token = ""
        self._renew_at = 0.0

    def ask(self) -> Mapping[str, Notice]:
        reply = self._service.get(_PATH, self._headers())
        if reply.status in (401, 403) and self._token:
            self._token = ""
            reply = self._service.get(_PATH, self._headers())
        if reply.status == 404:
            return {}
        if reply.status != 200:
            raise self._service.unreadable(_PATH, reply, "it should be 200, or 404 while there is nothing to say")
        try:
            at = instant(reply.text)
        except ValueError as error:
            raise self._service.unreadable(_PATH, reply, str(error)) from error
        key = f"alibaba-spot-{at:.0f}"
        now, deadline = self._service.clock(), at - reply.ahead
        notice = Notice(
            id=key, kind=NoticeKind.PREEMPTION.value, seen_at=now, deadline=deadline, source="alibaba", detail="the instance is released"
        )
        return {key: notice}

    def _headers(self) -> dict[str, str]:
        """With a token where the instance gives one: it must where hardened, and old ones can't."""
        now = self._service.clock()
        if not self._token or now >= self._renew_at:
            reply = self._service.ask("PUT", "/latest/api/token", {f"{_TOKEN}-ttl-seconds": str(_TTL_S)})
            self._token, self._renew_at = (reply.text.strip() if reply.status == 200 else ""), now + _TTL_S / 2
        return {_TOKEN: self._token} if self._token else {}
