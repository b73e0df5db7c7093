"""How a node keeps its images by its settings, and what is done about them now and then."""

import asyncio
import hashlib
import random
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shunter.model.errors import Stalled

from shunter_agent.drivers import thaw_left_behind
from shunter_agent.images.archive import Archive, Ring
from shunter_agent.images.folder_objects import FolderObjects
from shunter_agent.images.listing import Listed
from shunter_agent.images.port import Objects
from shunter_agent.images.s3_objects import S3Objects
from shunter_agent.images.sealing import Keys, read_key
from shunter_agent.images.signing import Signer, Trust
from shunter_agent.images.store import ImageStore
from shunter_agent.node import Node
from shunter_agent.orders.carry import KEEP_S
from shunter_agent.runtime.port import Runtime
from shunter_agent.settings import Settings
from shunter_agent.stored import StoredDepot
from shunter_agent.tls import TlsFiles

IN_MEMORY: Final = Path("/dev/shm")  # noqa: S108  (who may use what is in it is checked: see `ImageStore`)
SEAL_S: Final = 30.0
"""Seconds between looks for images that are still plain and should be encrypted by now."""
LOOK_S: Final = 120.0
"""Seconds, at most, between looks what is in the archive. What this node puts there or deletes it knows at once."""
FORGET_S: Final = 86400.0
"""Seconds between looks for what of the journal nobody asks for any more."""
FORGET_AGAIN_S: Final = 600.0
"""Seconds until the next one, where it couldn't be forgotten."""
SWEEP_S: Final = 6 * 3600.0
"""Seconds, at most, between looks for what no image in the archive needs any more."""


def open_images(settings: Settings, runtime: Runtime, clock: Callable[[], float]) -> ImageStore:
    """The images of this node; what an earlier run left half made is gone, once its workers run. Raises Stalled SH818, SH820; OSError."""
    root = settings.state / "images"
    tls = TlsFiles(ca=settings.tls.ca, cert=settings.tls.cert, key=settings.tls.key)
    keys = Keys(settings.images.keys) if settings.images.keys else None
    whose = hashlib.sha256(str(settings.state).encode()).hexdigest()[:12]
    work = settings.images.work or IN_MEMORY / f"shunter-images-{whose}"
    for folder in {root, work if keys else root}:
        thaw_left_behind(runtime, folder)
    trust = Trust(tls.ca, settings.images.unsigned)
    return ImageStore(root, keys=keys, work=work, signer=Signer(tls, clock), trust=trust)


def open_archive(settings: Settings, clock: Callable[[], float]) -> Archive | None:
    """Where images are kept away from the nodes; None: nowhere. Raises Stalled SH818, SH823."""
    asked = settings.archive
    if not asked.url:
        return None
    objects: Objects
    if asked.url.startswith("s3://"):
        bucket, _, prefix = asked.url.removeprefix("s3://").partition("/")
        objects = S3Objects(bucket, prefix, endpoint=asked.endpoint, region=asked.region)
    else:
        objects = FolderObjects(Path(asked.url))
    return Archive(objects, Ring([read_key(path) for path in asked.keys]), clock)


def seal_what_is_left(node: Node) -> None:
    """Encrypt what an earlier run didn't come to or kept plain before it had a key, what was made for a move that went back, and what a
    full disk didn't take; once nothing stands still. Call in the event loop. Raises OSError."""
    assert isinstance(node.depot, StoredDepot)
    for image in node.depot.store.unsealed():
        node.sync_later(image)


async def keep(node: Node) -> None:
    """Look after the images of a node, the archive and the journal, until cancelled. What fails is tried again the next time."""
    assert isinstance(node.depot, StoredDepot)
    await asyncio.gather(_seal(node), _forget(node), _look(node, node.depot.listed), _sweep(node, node.depot.archive))


async def _seal(node: Node) -> None:
    while True:
        _try(node, "seal images", lambda: seal_what_is_left(node))
        await asyncio.sleep(SEAL_S)


async def _forget(node: Node) -> None:
    while True:
        done = _try(node, "forget old steps", lambda: node.journal.forget_before(node.clock() - KEEP_S))
        await asyncio.sleep(FORGET_S if done else FORGET_AGAIN_S)


def _try(node: Node, what: str, call: Callable[[], None]) -> bool:
    """Whether it is done. Whatever goes wrong with it ends nothing else; of a disk that takes no writes others tell."""
    try:
        call()
    except (OSError, Stalled):
        return False
    except Exception as error:
        node.log.error("background work failed", task=what, error=f"{type(error).__name__}: {error}")
        return False
    return True


async def _look(node: Node, listed: Listed | None) -> None:
    while listed is not None:
        await node.in_background(listed.look)
        await asyncio.sleep(random.uniform(LOOK_S / 2, LOOK_S))  # noqa: S311  (nodes needn't do it at the same time)


async def _sweep(node: Node, archive: Archive | None) -> None:
    while archive is not None:
        await asyncio.sleep(random.uniform(SWEEP_S / 2, SWEEP_S))  # noqa: S311  (nodes needn't do it at the same time)
        await node.in_background(archive.sweep)
