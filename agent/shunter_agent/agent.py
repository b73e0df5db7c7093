"""One agent, put together, started and ended."""

import asyncio
import concurrent.futures
import contextlib
import signal
import time
from collections.abc import Awaitable, Callable, Container, Mapping
from functools import partial
from typing import Final, TypeVar

from shunter.model.errors import Problem, ShunterError, Stalled

from shunter_agent import gpus, letting_go
from shunter_agent.drivers import make_runtime
from shunter_agent.images.manifest import ImageManifest
from shunter_agent.images.pacing import Pacing
from shunter_agent.images.server import ImageServer
from shunter_agent.journal import Journal
from shunter_agent.keeping import keep, open_archive, open_images
from shunter_agent.log import Log
from shunter_agent.node import Node
from shunter_agent.notices.canary import canaries
from shunter_agent.notices.firsts import Firsts
from shunter_agent.notices.merged import Merged
from shunter_agent.notices.port import Notice
from shunter_agent.notices.sources import sources
from shunter_agent.orders.carry import Orders
from shunter_agent.orders.condemned import Condemned
from shunter_agent.orders.holds import Holds
from shunter_agent.recovery import recover, start_missing
from shunter_agent.residents import Residents
from shunter_agent.runtime.port import Housing, Provable, Runtime
from shunter_agent.runtime.proven import Proven
from shunter_agent.server import AgentService, make_server
from shunter_agent.serving.dynamo import DynamoServing
from shunter_agent.serving.probe import Probe
from shunter_agent.settings import Settings
from shunter_agent.stored import StoredDepot
from shunter_agent.tls import TlsFiles

T = TypeVar("T")
U = TypeVar("U")
ANSWER_S: Final = 1.0
"""Seconds that a source of notices waits for a word about the node."""


async def serve(settings: Settings, *, clock: Callable[[], float] = time.time, started: Callable[[], None] = lambda: None) -> None:
    """Run until SIGTERM or SIGINT. Recovery comes first, then the workers of the settings, and only then orders.

    Workers live on after it; a copy that stands still goes back by itself (a frozen one runs on, a held one dies). `started` is called once
    orders are taken. Raises Stalled when something that it needs can't be had; Rejected or Retry SH703 without a usable CRIU.
    """
    log = Log(settings.node, clock=clock)
    settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    settings.state.chmod(0o700)
    runtime = make_runtime(settings, log.problem)
    async with contextlib.AsyncExitStack() as stack:
        node = _node(settings, runtime, log, clock, stack)
        orders = Orders(node)
        service = AgentService(node, orders)
        await recover(node, service.destination)
        await start_missing(node)
        _listen_for_images(node, stack)
        watch_notices(node, stack)
        server, port = make_server(service, _tls(settings), settings.listen)
        await server.start()
        _prove(node)
        service.standing.recall()
        holds = asyncio.create_task(Holds(orders, service.source, service.destination).run())
        standing = asyncio.create_task(service.standing.run())
        keeping = asyncio.create_task(keep(node))
        condemned = asyncio.create_task(Condemned(orders, settings.gpu_gone).run())
        residents = asyncio.create_task(_look_for_residents(node))
        log.info("taking orders", listen=settings.listen, port=port, runtime=runtime.name)
        started()
        await _until_told_to_end(holds)
        log.info("ending; workers live on")
        node.events.close()
        standing.cancel()
        await orders.close()
        await server.stop(grace=2.0)
        for task in (holds, keeping, condemned, residents):
            task.cancel()
        await asyncio.gather(holds, standing, keeping, condemned, residents, return_exceptions=True)
        await let_go(node, service)
        if node.proven is not None:
            await node.proven.close()


def _prove(node: Node) -> None:
    runtime = node.runtime
    if isinstance(runtime, Provable):

        def tried() -> None:
            node.facts = runtime.facts()  # of the CRIU that was tried

        node.proven = Proven(runtime.canary, node.settings.state / "canary", node.log.problem, tool=runtime.tool, tried=tried)


async def _look_for_residents(node: Node) -> None:
    """Where the settings say so: workers in this node's pods, until cancelled."""
    if node.settings.containers is not None and isinstance(node.runtime, Housing):
        await Residents(node, node.runtime, node.settings.containers.every).run()


def _node(settings: Settings, runtime: Runtime, log: Log, clock: Callable[[], float], stack: contextlib.AsyncExitStack) -> Node:
    store = open_images(settings, runtime, clock)
    journal = Journal(settings.state / "journal.db")
    stack.callback(journal.close)
    node = Node(
        settings=settings,
        runtime=runtime,
        depot=StoredDepot(store, _tls(settings), Pacing(rate=settings.images.bandwidth), open_archive(settings, clock)),
        journal=journal,
        serving=DynamoServing(settings.discovery),
        probe=Probe(),
        log=log,
        clock=clock,
        facts=runtime.facts(),
        slot_gpus=gpus.deal(settings.slot_ids(), gpus.known(settings.state / "gpus.json", gpus.boot(), runtime.gpus().gpus)),
    )
    stack.callback(node.exits.close)
    return node


def _listen_for_images(node: Node, stack: contextlib.AsyncExitStack) -> None:
    host, _, port = node.settings.image_listen.rpartition(":")
    loop, depot = asyncio.get_running_loop(), node.depot

    def received(manifest: ImageManifest, sender: str) -> None:
        node.log.info("image received", image=manifest.id, sender=sender, bytes=manifest.bytes)
        loop.call_soon_threadsafe(node.sync_later, manifest.id)

    assert isinstance(depot, StoredDepot)
    try:
        server = ImageServer(depot.store, _tls(node.settings), host.strip("[]"), int(port), received=received, tell=node.log.problem)
    except OSError as error:
        raise Stalled(
            Problem(
                code="SH669",
                what=f"the agent can't listen for images at {node.settings.image_listen}: {error.strerror}",
                remedy="Check `image_listen` in its settings, and that no other agent runs here",
                subject=node.settings.image_listen,
            )
        ) from error
    server.start()
    stack.callback(server.close)


def watch_notices(node: Node, stack: contextlib.AsyncExitStack) -> None:
    """Listen to all sources in the settings until `stack` is closed. Call in the event loop that the node belongs to."""
    loop = asyncio.get_running_loop()

    def log(problem: Problem) -> None:
        node.log.problem(problem)

    settings = gpus.named(node.settings, node.slot_gpus)
    empty = partial(letting_go.may_go, node, partial(_ask, loop, otherwise=False))

    def homes() -> Mapping[str, str] | None:
        return _ask(loop, node.homes, otherwise=None)

    firsts = Firsts(settings.state / "first-seen.json", boot=gpus.boot(), clock=node.clock, log=log)
    found = sources(settings, empty=empty, clock=node.clock, log=log, homes=homes, firsts=firsts)
    tried = canaries(settings, clock=node.clock, log=log)
    node.sources, node.rehearsals = tuple(found), tuple(tried)
    source = Merged([*found, *tried], clock=node.clock, firsts=firsts)

    def changed(now: Mapping[str, Notice]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the agent has ended
            loop.call_soon_threadsafe(node.notices_changed, dict(now))

    source.start(changed)
    stack.callback(source.stop)


def _ask(loop: asyncio.AbstractEventLoop, question: Callable[[], T], *, otherwise: U) -> T | U:
    """The answer of the event loop's thread, which alone may look at the node; `otherwise` when it has none to give now."""
    answer: concurrent.futures.Future[T] = concurrent.futures.Future()
    try:
        loop.call_soon_threadsafe(lambda: answer.set_result(question()))
        return answer.result(ANSWER_S)
    except (RuntimeError, TimeoutError):  # the loop is closed, or busy for longer
        return otherwise


async def _until_told_to_end(holds: "asyncio.Task[None]") -> None:
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, told.set)
    waiting = asyncio.create_task(told.wait())
    done, _ = await asyncio.wait((waiting, holds), return_when=asyncio.FIRST_COMPLETED)
    if holds in done:
        waiting.cancel()
        holds.result()  # raises: without holds no copy would ever go back by itself, so the agent must not go on


async def let_go(node: Node, service: AgentService) -> None:
    """Put back what stands still, as the agent's death would: frozen copies run on, held ones die. What fails is logged, whatever it is; it
    keeps no other one standing, nor does one that hangs.
    """
    ends = [_end_hold(node, service, worker, node.frozen, service.source.end_hold) for worker in node.frozen]
    ends += [_end_hold(node, service, worker, node.held, service.destination.end_hold) for worker in node.held]
    await asyncio.gather(*ends)
    await node.finish_background()


async def _end_hold(
    node: Node, service: AgentService, worker: str, standing: Container[str], end_hold: Callable[[str, str], Awaitable[None]]
) -> None:
    async with service.destination.orders.lock(worker):
        if worker not in standing:  # its hold ended meanwhile, or it did
            return
        try:
            await end_hold(worker, "the agent was ended")
        except ShunterError as error:
            node.log.problem(error.problem, worker=worker)
        except Exception as error:
            node.log.error("a hold couldn't be ended", worker=worker, error=f"{type(error).__name__}: {error}")


def _tls(settings: Settings) -> TlsFiles:
    return TlsFiles(ca=settings.tls.ca, cert=settings.tls.cert, key=settings.tls.key)
