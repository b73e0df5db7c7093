"""What a server can say that no real one would say twice in a test, and how long is waited after it."""

import pytest
from cluster_server import Ended, Server, event, listed, refused, thing, watched
from shunter.cluster.reflector import Reflector, Times


class Run:
    """A reflector over a pretended server, run until that has no more answers. Time goes on by waits alone, and by `lasting` per watch."""

    def __init__(self, *answers: object, lasting: float = 0.0) -> None:
        self.server = Server(*answers)  # type: ignore[arg-type]
        self.now = 0.0
        self.waits: list[float] = []
        self.told: list[tuple[str, str]] = []
        self.lasting = lasting

        async def sleep(seconds: float) -> None:
            self.waits.append(seconds)
            self.now += seconds

        def clock() -> float:
            self.now += self.lasting
            return self.now

        self.reflector = Reflector(
            self.server.api(),
            "/things",
            listener=lambda change, found: self.told.append((change, found["metadata"]["name"])),
            times=Times(wait_first=1.0, wait_most=8.0, doubt=1e9),
            clock=clock,
            sleep=sleep,
            rnd=lambda: 1.0,
        )

    async def __call__(self) -> "Run":
        with pytest.raises(Ended):
            await self.reflector.run()
        return self

    @property
    def kinds(self) -> list[str]:
        return ["watch" if "watch" in query else "list" for _, query in self.server.asked]


async def test_events_are_taken_whatever_pieces_they_come_in() -> None:
    lines = [
        event("ADDED", thing("b", 2)),
        event("MODIFIED", thing("a", 3)),
        event("DELETED", thing("b", 4)),
        event("BOOKMARK", thing("", 9)),
    ]
    run = await Run(listed(1, thing("a", 1)), watched(*lines))()
    assert run.told == [("added", "a"), ("added", "b"), ("changed", "a"), ("removed", "b")]
    assert run.server.asked[-1][1]["resourceVersion"] == "9", "a bookmark moves on"


async def test_half_an_event_is_none() -> None:
    run = await Run(listed(1), watched(event("ADDED", thing("a", 2))[:-10]))()
    assert run.told == []
    assert run.server.asked[-1][1]["resourceVersion"] == "1"
    assert run.reflector.problem is None


@pytest.mark.parametrize("expired", [refused(410), watched(event("ERROR", {"code": 410, "message": "too old"}))], ids=["status", "event"])
async def test_an_expired_version_is_listed_anew(expired: object) -> None:
    run = await Run(listed(1, thing("a", 1)), expired, listed(7, thing("b", 6)))()
    assert run.kinds == ["list", "watch", "list", "watch"]
    assert run.told == [("added", "a"), ("removed", "a"), ("added", "b")]


async def test_versions_that_expire_again_and_again_are_no_hot_loop() -> None:
    run = await Run(*[answer for _ in range(6) for answer in (listed(1), refused(410))])()
    assert run.waits == [1.0, 2.0, 4.0, 8.0, 8.0, 8.0]


async def test_a_server_that_ends_every_watch_at_once_is_no_hot_loop() -> None:
    run = await Run(listed(1), *[watched() for _ in range(5)])()
    assert run.waits == [1.0, 2.0, 4.0, 8.0, 8.0]
    assert run.kinds.count("list") == 1


async def test_after_a_watch_that_lasted_nobody_waits() -> None:
    run = await Run(listed(1), *[watched() for _ in range(5)], lasting=6.0)()
    assert run.waits == []


async def test_a_list_whose_pages_expire_begins_anew() -> None:
    run = await Run(listed(1, thing("a", 1), more="next"), refused(410), listed(2, thing("a", 1), more="next"), listed(2, thing("b", 2)))()
    assert run.told == [("added", "a"), ("added", "b")]
    assert [query.get("continue") for _, query in run.server.asked[:4]] == [None, "next", None, "next"]


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (refused(403), "SH255"),
        (refused(404), "SH252"),
        (refused(500), "SH251"),
        (refused(429), "SH251"),
        (ConnectionResetError("reset"), "SH251"),
        (watched(b"<html>\n"), "SH257"),
        (watched(event("WHAT", thing("a", 2))), "SH257"),
        (watched(b'{"type": "ADDED", "object": 7}\n'), "SH257"),
        (watched(event("ADDED", {"metadata": {"name": "a"}})), "SH257"),
        (watched(event("ERROR", {"code": 500})), "SH251"),
    ],
)
async def test_what_went_wrong_is_told_and_what_was_read_stays(answer: object, code: str) -> None:
    run = await Run(listed(1, thing("z", 1)), answer)()
    assert run.reflector.problem is not None
    assert run.reflector.problem.code == code
    assert ("n", "z") in run.reflector.objects
    again = run.kinds[2]
    assert again == ("list" if code == "SH257" else "watch"), "what can't be read isn't asked for again as it is"


async def test_nothing_is_synced_before_the_whole_list_was_read() -> None:
    run = await Run(listed(1, thing("a", 1), more="next"), refused(500))()
    assert not run.reflector.synced.is_set()
    assert run.reflector.age() is None
    assert dict(run.reflector.objects) == {}


async def test_age_grows_from_what_the_server_last_confirmed() -> None:
    run = await Run(listed(1), watched(), watched())()
    assert run.reflector.age() == sum(run.waits), "two watches that ended at once confirmed nothing"
