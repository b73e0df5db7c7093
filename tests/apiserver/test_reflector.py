"""A copy of a real server's resources, while the server is killed, stopped, restarted, set back, and its connections are cut or held."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator

import msgspec
import pytest
from conftest import admin, running
from control_plane import ControlPlane
from proxy import Proxy
from shunter.cluster.api import Api, Object
from shunter.cluster.reflector import Reflector, Times

QUICK = Times(watch_least=2, watch_most=3, margin=0.7, request=1.5, steady=0.8, doubt=6.0, wait_first=0.05, wait_most=0.4)
MAPS = "/api/v1/namespaces/default/configmaps"


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """One for this module's tests, which leave it running."""
    yield from running(tmp_path_factory.mktemp("broken"))


@pytest.fixture(autouse=True)
def nothing_left(plane: ControlPlane) -> None:
    for item in plane.must("GET", MAPS)["items"]:
        plane.must("DELETE", f"{MAPS}/{item['metadata']['name']}")


class Copy:
    """A reflector at work behind a proxy, and what it told of."""

    def __init__(self, reflector: Reflector, proxy: Proxy) -> None:
        self.reflector, self.proxy = reflector, proxy
        self.told: list[tuple[str, str]] = []

    @property
    def names(self) -> set[str]:
        return {name for _, name in self.reflector.objects}

    def values(self) -> dict[str, str]:
        return {name: found["data"]["value"] for (_, name), found in self.reflector.objects.items()}


@pytest.fixture
async def copied(plane: ControlPlane) -> AsyncIterator[Copy]:
    async with Proxy(plane.port) as proxy:
        api = Api(msgspec.structs.replace(admin(plane), server=f"https://127.0.0.1:{proxy.port}"))
        copy: Copy

        def listener(change: str, found: Object) -> None:
            copy.told.append((change, found["metadata"]["name"]))

        copy = Copy(Reflector(api, MAPS, listener=listener, page=3, times=QUICK), proxy)
        task = asyncio.create_task(copy.reflector.run())
        yield copy
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        await api.aclose()


async def until(done: Callable[[], object], within: float = 20.0) -> None:
    async with asyncio.timeout(within):
        while not done():
            await asyncio.sleep(0.02)


def put(plane: ControlPlane, name: str, value: str = "1") -> None:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"value": value}}
    plane.must("PATCH", f"{MAPS}/{name}?fieldManager=test&force=true", body, "application/apply-patch+yaml")


def remove(plane: ControlPlane, name: str) -> None:
    plane.must("DELETE", f"{MAPS}/{name}")


async def test_it_lists_by_pages_and_follows(plane: ControlPlane, copied: Copy) -> None:
    for number in range(8):
        put(plane, f"m{number}")
    await copied.reflector.synced.wait()
    await until(lambda: len(copied.names) == 8)
    put(plane, "m0", "2")
    remove(plane, "m1")
    put(plane, "m9")
    await until(lambda: "m9" in copied.names)
    assert copied.values() == {"m0": "2", "m9": "1", **{f"m{n}": "1" for n in range(2, 8)}}
    assert copied.told[-3:] == [("changed", "m0"), ("removed", "m1"), ("added", "m9")]
    assert len(copied.told) == 8 + 3


async def oldest(copied: Copy, seconds: float) -> float:
    found, end = 0.0, time.monotonic() + seconds
    while time.monotonic() < end:
        found = max(found, copied.reflector.age() or 0.0)
        await asyncio.sleep(0.1)
    return found


async def test_bookmarks_alone_keep_it_fresh(plane: ControlPlane, copied: Copy) -> None:
    """Nothing changes in it, only elsewhere, and no list is needed."""
    await copied.reflector.synced.wait()
    copied.reflector._times = msgspec.structs.replace(QUICK, doubt=600.0)  # a list would confirm it as well
    elsewhere = {"apiVersion": "v1", "kind": "Secret", "metadata": {"generateName": "other-"}}
    for _ in range(2):
        before = time.monotonic()
        while (copied.reflector.age() or 0.0) >= time.monotonic() - before:
            assert time.monotonic() - before < 30.0, "nothing has confirmed it since"
            await asyncio.to_thread(plane.must, "POST", "/api/v1/namespaces/kube-public/secrets", elsewhere)
            await asyncio.sleep(0.1)
    assert copied.reflector.problem is None
    assert copied.told == []


async def test_where_nothing_happens_at_all_a_list_keeps_it_fresh(copied: Copy) -> None:
    await copied.reflector.synced.wait()
    assert await oldest(copied, QUICK.doubt + QUICK.watch_most) < QUICK.doubt + QUICK.watch_most + 1.0
    assert (copied.reflector.age() or 0.0) < QUICK.doubt + 1.0


async def test_a_cut_watch_goes_on_where_it_was(plane: ControlPlane, copied: Copy) -> None:
    put(plane, "a")
    await until(lambda: "a" in copied.names)
    copied.proxy.cut()
    put(plane, "b")
    await until(lambda: "b" in copied.names)
    assert copied.told == [("added", "a"), ("added", "b")], "nothing is told twice"


async def test_a_half_open_connection_is_found_by_its_deadline(plane: ControlPlane, copied: Copy) -> None:
    put(plane, "a")
    await until(lambda: "a" in copied.names)
    copied.proxy.hold()
    put(plane, "b")
    await until(lambda: "b" in copied.names, QUICK.watch_most + QUICK.margin + 3.0)
    assert copied.told == [("added", "a"), ("added", "b")]


async def test_it_outlives_a_server_that_is_killed(plane: ControlPlane, copied: Copy) -> None:
    put(plane, "a")
    await until(lambda: "a" in copied.names)
    await asyncio.to_thread(plane.kill_api)
    await until(lambda: copied.reflector.problem is not None)
    before = copied.proxy.connections
    await asyncio.sleep(2.0)
    assert copied.proxy.connections - before < 12, "it waits between its tries"
    assert (copied.reflector.age() or 0.0) > 1.5, "what it has grows old"
    assert copied.names == {"a"}, "and stays readable"
    await asyncio.to_thread(plane.start_api)
    await asyncio.to_thread(plane.wait_ready)
    put(plane, "b")
    await until(lambda: "b" in copied.names)
    assert copied.reflector.problem is None
    assert (copied.reflector.age() or 0.0) < 1.0
    assert copied.told == [("added", "a"), ("added", "b")]


async def test_a_server_that_stands_still_makes_it_old(plane: ControlPlane, copied: Copy) -> None:
    put(plane, "a")
    await until(lambda: "a" in copied.names)
    plane.freeze_api()
    try:
        await until(lambda: copied.reflector.problem is not None, 10.0)
        assert copied.reflector.problem is not None
        assert copied.reflector.problem.code == "SH251"
        assert (copied.reflector.age() or 0.0) >= QUICK.watch_least
    finally:
        plane.thaw_api()
    put(plane, "b")
    await until(lambda: "b" in copied.names)


async def test_what_was_compacted_meanwhile_is_listed_anew(plane: ControlPlane, copied: Copy) -> None:
    """410: the versions since it was cut off are gone, and so are the events between them."""
    put(plane, "stays")
    put(plane, "goes")
    await until(lambda: len(copied.names) == 2)
    copied.proxy.refusing = True
    copied.proxy.cut()
    remove(plane, "goes")
    put(plane, "stays", "2")
    put(plane, "comes")
    plane.compact()
    await asyncio.to_thread(plane.restart_api)  # its own memory of events would do otherwise
    copied.proxy.refusing = False
    await until(lambda: "comes" in copied.names)
    assert copied.values() == {"stays": "2", "comes": "1"}
    assert sorted(copied.told[2:]) == [("added", "comes"), ("changed", "stays"), ("removed", "goes")]


async def test_one_of_the_same_name_made_anew_meanwhile_is_another(plane: ControlPlane, copied: Copy) -> None:
    put(plane, "a")
    await until(lambda: "a" in copied.names)
    copied.proxy.refusing = True
    copied.proxy.cut()
    remove(plane, "a")
    put(plane, "a", "2")
    plane.compact()
    await asyncio.to_thread(plane.restart_api)
    copied.proxy.refusing = False
    await until(lambda: copied.values() == {"a": "2"})
    assert copied.told == [("added", "a"), ("removed", "a"), ("added", "a")]


async def test_a_server_that_was_set_back_is_listed_anew(plane: ControlPlane, copied: Copy) -> None:
    """Its versions are lower than ours: it takes ours for one of the future, and a watch from there would stay silent for long."""
    for number in range(12):
        put(plane, "a", str(number))
    await until(lambda: copied.values() == {"a": "11"})
    await asyncio.to_thread(plane.kill_api)
    plane.kill_etcd()
    plane.start_etcd(anew=True)
    plane.start_api()
    await asyncio.to_thread(plane.wait_ready)
    put(plane, "b")
    await until(lambda: copied.names == {"b"}, QUICK.doubt + QUICK.watch_most + 10.0)
    assert ("removed", "a") in copied.told
