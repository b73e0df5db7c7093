"""The depot over this node's image store and the transfers between agents."""

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path
from typing import Final

from shunter.model.errors import Problem, Rejected, Retry, Stalled

from shunter_agent.depot import ARCHIVE, Archived, ImageFacts
from shunter_agent.images.archive import Archive
from shunter_agent.images.bases import Bases, bases_of
from shunter_agent.images.copying import Job
from shunter_agent.images.growth import Growth
from shunter_agent.images.listing import Listed
from shunter_agent.images.manifest import ImageInfo, ImageManifest
from shunter_agent.images.pacing import Pace, Pacing, Urgency
from shunter_agent.images.room import Dump
from shunter_agent.images.store import ImageStore
from shunter_agent.images.transfer import Peer, Sent, send_growing, send_whole
from shunter_agent.runtime.port import Live
from shunter_agent.tls import TlsFiles

_SAY_S: Final = 0.5
"""Seconds in which a cancelled sending may still tell the other side, as long as it listens."""
_LOOK_S: Final = 0.05
_END_S: Final = 5.0
"""Seconds that a sending whose connection was ended may take to notice."""


class StoredDepot:
    """Implements `depot.Depot`."""

    def __init__(self, store: ImageStore, tls: TlsFiles, pacing: Pacing | None = None, archive: Archive | None = None) -> None:
        """`pacing` is what all that goes to other agents, and to or from the archive, shares; None: it goes as fast as it can. `archive`:
        None, there is none."""
        self.archive = archive
        self.listed = Listed(archive) if archive is not None else None
        """What the archive has; None: there is none."""
        self._told = Archived()
        self.root = store.root
        self.store = store
        self._pacing = pacing or Pacing()
        self._tls = tls
        self._known: dict[str, ImageManifest] = {}
        self._dumps: dict[str, Dump] = {}

    def begin(self, image: str, expected: int = 0, least: int = 0, *, urgent: bool = False) -> Path:
        """See `depot.Depot`. Raises Rejected SH801, SH803; Retry SH814, SH827; Stalled SH667 when the disk doesn't take it."""
        try:
            folder = self.store.begin(image)
            try:
                self._dumps[image] = self.store.room.dump(image, expected, folder, least, urgent=urgent)
            except BaseException:
                self.store.abandon(image)
                raise
        except OSError as error:
            raise _disk(image, error) from error
        return folder

    def short(self, worker: str, least: int, *, urgent: bool) -> Problem | None:
        """See `depot.Depot`. SH827. Where nobody can say, as the disk doesn't answer, it is not known."""
        with contextlib.suppress(OSError):
            return self.store.room.short(worker, least, urgent=urgent)
        return None

    def commit(self, image: ImageFacts, *, durable: bool) -> ImageFacts:
        """See `depot.Depot`. What was sent already isn't digested again. Raises Rejected SH801 to SH804; Stalled SH667."""
        try:
            sent = self._known.pop(image.id, None)
            files = {file.name: file for file in sent.files} if sent else None
            manifest = self.store.commit(_info(image), files, fsync=durable, signature=sent.signature if sent else None)
        except OSError as error:
            raise _disk(image.id, error) from error
        self._written(image.id)
        return facts_of(manifest)

    def _written(self, image: str) -> None:
        dump = self._dumps.pop(image, None)
        if dump is not None:
            dump.close()

    def sync(self, image: str, between: Callable[[], None] = lambda: None) -> None:
        """See `depot.Depot`. Raises OSError."""
        with contextlib.suppress(Rejected):
            self.store.sync(image, between)

    def abandon(self, image: str) -> None:
        """See `depot.Depot`. An id that can't be one was never begun."""
        self._known.pop(image, None)
        try:
            with contextlib.suppress(Rejected):
                self.store.abandon(image)
        except OSError as error:
            raise _disk(image, error) from error
        finally:
            self._written(image)  # also of what can't be deleted nothing more will be written

    def get(self, image: str) -> ImageFacts | None:
        """See `depot.Depot`. Raises Rejected SH801, SH804."""
        try:
            return facts_of(self.store.get(image))
        except Rejected as error:
            if error.problem.code == "SH802":
                return None
            raise

    def folder(self, image: str) -> Path:
        """See `depot.Depot`. Raises as `ImageStore.open_to_restore` does, but Stalled SH667 when the disk doesn't take it."""
        try:
            return self.store.open_to_restore(image)
        except OSError as error:
            raise _disk(image, error) from error

    def done(self, image: str) -> None:
        """See `depot.Depot`. Raises OSError."""
        self.store.close(image)

    @property
    def in_memory(self) -> bool:
        """See `depot.Depot`."""
        return self.store.in_memory

    def all(self) -> tuple[ImageFacts, ...]:
        """See `depot.Depot`."""
        return tuple(sorted((facts_of(manifest) for manifest in self.store.list()), key=lambda image: image.id))

    def discard(self, image: str) -> bool:
        """See `depot.Depot`. Raises Rejected SH801."""
        try:
            return self.store.discard(image)
        except OSError as error:
            raise _disk(image, error) from error

    def sending(
        self,
        folder: Path,
        image: str,
        node: str,
        address: str,
        progress: Callable[[int], None],
        expected: int = 0,
        worker: str = "",
        deadline: float | None = None,
    ) -> "GrowingImage":
        """See `depot.Depot`. Raises Rejected SH805 for an address that is none, and what `send_growing` does before the first byte."""
        bases = cache(lambda: bases_of(self.store, worker) if worker else {})
        stands = threading.Event()
        turn = self._pacing.sending(Urgency.by(deadline, copy=False), stands.is_set)
        peer = Peer.at(node, address)
        return GrowingImage(folder, image, peer, self._tls, progress, self._remember, expected, bases, self.store, turn, stands)

    def send(self, image: str, node: str, address: str, progress: Callable[[int], None], deadline: float | None = None) -> int:
        """See `depot.Depot`. Raises Rejected SH825 without an archive; Stalled SH667."""
        if address == ARCHIVE:
            try:
                with self._pacing.sending(Urgency.by(deadline, copy=True, archived=True)) as pace:
                    sent = self._archive(image).put(self.store, image, progress, pace)
            except OSError as error:
                raise _disk(image, error) from error
            self._look()
            return sent
        with self._pacing.sending(Urgency.by(deadline, copy=True)) as pace:
            return send_whole(self.store, image, Peer.at(node, address), self._tls, progress=progress, pace=pace).bytes

    def _archive(self, image: str) -> Archive:
        if self.archive is None:
            raise Rejected(
                Problem(
                    code="SH825",
                    what="the order is about the archive, and this node knows of none",
                    remedy="Name it as `url` in the `[archive]` of the settings of all nodes",
                    subject=image,
                )
            )
        return self.archive

    def fetch(self, image: str, progress: Callable[[int], None], deadline: float | None = None) -> ImageFacts | None:
        """See `depot.Depot`. Raises as `Archive.fetch` does, but Stalled SH667 when the disk doesn't take it."""
        if self.archive is None:
            return None
        try:
            with self._pacing.sending(Urgency.by(deadline, copy=False)) as pace:
                manifest = self.archive.fetch(self.store, image, progress, pace)
        except OSError as error:
            raise _disk(image, error) from error
        return facts_of(manifest) if manifest is not None else None

    def archived(self) -> Archived | None:
        """See `depot.Depot`."""
        if self.listed is None:
            return None
        last, told = self.listed.last, self._told
        if last is None:
            return Archived()
        if (told.looked_at, told.digest) != (last.looked_at, last.digest):
            images = told.images if told.digest == last.digest else tuple(facts_of(manifest) for manifest in last.images)
            told = self._told = Archived(looked_at=last.looked_at, digest=last.digest, images=images)
        return told

    def in_archive(self, image: str) -> ImageFacts | None:
        """See `depot.Depot`. Raises Rejected SH801, SH804, SH815 to SH817, SH824; Retry SH822; Stalled SH810."""
        manifest = self.archive.manifest(image) if self.archive is not None else None
        if manifest is None:
            return None
        if self.store.trust is not None:
            self.store.trust.check(manifest)
        return facts_of(manifest)

    def discard_archived(self, image: str) -> bool:
        """See `depot.Depot`. Raises Rejected SH801, SH825 without an archive; Retry SH822."""
        existed = self._archive(image).discard(image)
        self._look()
        return existed

    def _look(self) -> None:
        """After a change of ours, so that reports tell it at once. Where that fails, the next look tells it."""
        if self.listed is not None:
            with contextlib.suppress(Retry):
                self.listed.look()

    def _remember(self, image: str, sent: Sent) -> None:
        self._known[image] = sent.manifest


class GrowingImage:
    """Implements `depot.Sending`: a thread that follows the dump."""

    def __init__(
        self,
        folder: Path,
        image: str,
        peer: Peer,
        tls: TlsFiles,
        progress: Callable[[int], None],
        sent: Callable[[str, Sent], None],
        expected: int,
        bases: Callable[[], Bases],
        store: ImageStore,
        turn: AbstractContextManager[Pace],
        stands: threading.Event,
    ) -> None:
        """`stands` is set once the worker stands still for what is left to send."""
        self._stands = stands
        self._growth = Growth()
        self._facts: ImageFacts | None = None
        self._result: Sent | BaseException | None = None
        self._remember = sent
        self.bytes = 0
        """See `depot.Sending`."""
        self._over = threading.Event()
        begun = threading.Event()

        def count(sent: int) -> None:
            self.bytes = sent
            progress(sent)

        def run() -> None:
            try:
                with turn as pace:
                    self._result = send_growing(
                        folder,
                        image,
                        self._describe,
                        self._growth,
                        peer,
                        tls,
                        expected=expected,
                        progress=count,
                        taken=begun.set,
                        bases=bases,
                        store=store,
                        pace=pace,
                    )
            except BaseException as error:
                self._result = error
            finally:
                begun.set()
                self._over.set()

        self._thread = threading.Thread(target=run, name=f"send {image}", daemon=True)
        self._thread.start()
        begun.wait()
        if isinstance(self._result, BaseException):
            raise self._result

    def copy(self, memories: Sequence[Live], within_s: float) -> str:
        """See `depot.Sending`. Raises what `send_growing` does when the link broke meanwhile: nothing can be sent any more."""
        job = Job(memories, time.monotonic() + within_s)
        self._growth.copy(job)
        while not job.done.wait(_LOOK_S):
            if self._over.is_set():
                break
        if isinstance(self._result, BaseException):
            raise self._result
        return job.failed

    def finish(self, image: ImageFacts) -> int:
        """See `depot.Sending`. Raises what `send_growing` does."""
        self._facts = image
        self._stands.set()
        self._growth.finish()
        self._thread.join()
        result = self._result
        if not isinstance(result, Sent):
            assert result is not None
            raise result
        self._remember(image.id, result)
        return result.bytes

    def cancel(self) -> None:
        """See `depot.Sending`."""
        self._growth.fail()
        self._thread.join(_SAY_S)
        self._growth.hang_up()
        self._thread.join(_END_S)

    def _describe(self) -> ImageInfo:
        assert self._facts is not None  # set before the growth finishes
        return _info(self._facts)


def _info(image: ImageFacts) -> ImageInfo:
    return ImageInfo(
        id=image.id,
        spec=image.spec,
        incarnation=image.incarnation,
        taken_at=image.taken_at,
        runtime=image.runtime,
        pause_s=image.pause_s or None,
        facts=image.facts,
        doubt=image.doubt,
        privileges=image.privileges,
    )


def facts_of(manifest: ImageManifest) -> ImageFacts:
    """A manifest as orders know it."""
    return ImageFacts(
        id=manifest.id,
        spec=manifest.spec,
        incarnation=manifest.incarnation,
        taken_at=manifest.taken_at,
        bytes=manifest.bytes,
        pause_s=manifest.pause_s or 0.0,
        facts=manifest.facts,
        runtime=manifest.runtime,
        doubt=manifest.doubt,
        privileges=manifest.privileges,
    )


def _disk(image: str, error: OSError) -> Stalled:
    return Stalled(
        Problem(
            code="SH667",
            what=f"the node's image folder doesn't take it: {error.strerror or error}",
            remedy="Free disk space, or mend the folder's permissions",
            subject=image,
        )
    )
