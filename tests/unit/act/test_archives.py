"""Lists of archived images as agents report them: known by their digest, and asked of one agent."""

import asyncio

import pytest
from shunter.act.agents import view_of
from shunter.act.archives import UNSEEN, Lists
from shunter.model.errors import Problem, Unknown
from shunter.wire import agent_pb2 as pb


def report(digest: str, *images: str, looked: float = 9.0) -> pb.NodeReport:
    spec = pb.WorkerSpec(worker="w", role="decode", graph="g", engine="vllm")
    listed = [pb.ImageInfo(id=name, spec=spec, incarnation=1, taken_at=2.0, bytes=3, facts={"cpu": "c"}) for name in images]
    return pb.NodeReport(node="a", archive=True, archive_looked=looked, archive_digest=digest, archived=listed)


class Agent:
    """Counts how often it is asked for its list."""

    def __init__(self, *images: str, digest: str = "d1", looked: float = 9.0) -> None:
        self.short, self.whole = report(digest, looked=looked), report(digest, *images, looked=looked)
        self.asked = 0
        self.answers = asyncio.Event()
        self.answers.set()
        self.fails = False

    async def fetch(self) -> pb.NodeReport:
        self.asked += 1
        await self.answers.wait()
        if self.fails:
            raise Unknown(Problem(code="SH520", what="no answer", remedy="none"))
        return self.whole


async def test_a_list_is_asked_of_one_agent_and_kept_for_all() -> None:
    lists, one, other = Lists(), Agent("b", "a"), Agent("b", "a", looked=11.0)
    looked, first = await lists.of(one.short, one.fetch)
    assert (looked, [i.id for i in first]) == (9.0, ["a", "b"])
    assert all((i.nodes, i.archived) == ((), True) for i in first)
    assert await lists.of(other.short, other.fetch) == (11.0, first)
    assert (await lists.of(one.short, one.fetch))[1] is first
    assert (one.asked, other.asked) == (1, 0)


async def test_while_one_is_asked_the_others_have_not_seen_it() -> None:
    lists, slow, other = Lists(), Agent("a"), Agent("a")
    slow.answers.clear()
    asking = asyncio.create_task(lists.of(slow.short, slow.fetch))
    await asyncio.sleep(0)
    assert await lists.of(other.short, other.fetch) == UNSEEN
    slow.answers.set()
    assert (await asking)[0] == 9.0
    assert ((await lists.of(other.short, other.fetch))[0], other.asked) == (9.0, 0)


async def test_one_that_does_not_answer_is_no_list_and_the_next_is_asked() -> None:
    lists, dead, other = Lists(), Agent("a"), Agent("a")
    dead.fails = True
    assert await lists.of(dead.short, dead.fetch) == UNSEEN
    assert (await lists.of(other.short, other.fetch))[0] == 9.0


async def test_what_has_changed_meanwhile_counts_as_it_is_now() -> None:
    lists, one = Lists(), Agent("a")
    one.whole = report("d2", "a", "b", looked=10.0)
    looked, images = await lists.of(one.short, one.fetch)
    assert (looked, len(images)) == (10.0, 2)
    again = Agent("a")
    assert len((await lists.of(again.short, again.fetch))[1]) == 1


async def test_few_are_kept() -> None:
    lists, one = Lists(), Agent("a")
    await lists.of(one.short, one.fetch)
    for n in range(20):
        another = Agent("a", digest=f"e{n}")
        await lists.of(another.short, another.fetch)
    await lists.of(one.short, one.fetch)
    assert (one.asked, len(lists._known)) == (2, 8)


async def test_who_has_not_looked_is_asked_for_nothing() -> None:
    one = Agent(digest="", looked=0.0)
    assert await Lists().of(one.short, one.fetch) == UNSEEN
    assert one.asked == 0


def test_a_view_has_it() -> None:
    seen = view_of(report("d1", "a"))
    assert (seen.node.archive, seen.archive_looked, [i.id for i in seen.archived]) == (True, 9.0, ["a"])


async def test_a_role_that_is_none_is_told() -> None:
    one = Agent("a")
    one.whole.archived[0].spec.role = "cook"
    with pytest.raises(ValueError, match="cook"):
        await Lists().of(one.short, one.fetch)
