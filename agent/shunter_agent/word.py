"""What this node has told of its own end, and to whom that may still count.

An engine that was told of a preemption takes this node for dead once the deadline is over and it has been silent for a stated time; then it
restores the node's workers from images elsewhere. If the preemption was withdrawn, or never came, and the link is cut, nobody can tell it
so. So telling is a promise: unless an engine is known to have heard from this node since, workers that could be restored elsewhere are
ended here before any engine may take the node for dead.

What an engine has heard it says itself, with each question: of which report it has taken in (`taken`), and from which on it won't forget
(`kept`). Neither an order nor a question without that proves anything: answers may be lost on a link that lets questions through. The
promise is over once an engine has kept a report without the notice.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
from shunter.model.errors import Problem, Stalled
from shunter.model.snapshot import NoticeKind

from shunter_agent.journal import Journal
from shunter_agent.notices.port import Notice

SHARE: Final = 0.5
"""After this part of that time the workers are ended. What is left is for ending them, and for clocks that differ."""
_REPORTS: Final = 512
"""Reports that an engine may still say it has taken in: one a second, and of more than one engine."""
_NOTE_S: Final = 5.0
"""What was heard is written down at most so often: too old a time ends workers sooner, and never too late."""


class Word(msgspec.Struct, frozen=True, kw_only=True):
    """A preemption that was told. Times are by `Node.elapsed`, which goes on for as long as the machine does: `told` when it was first,
    `due` the deadline, `heard` when an engine is last known to have heard from this node. `presumed`: for how many seconds a node must be
    silent to be taken for dead; 0: no engine has said, as those before this release do, so that nothing can be promised.
    """

    notice: str
    told: float
    due: float
    heard: float
    presumed: float = 0.0
    boot: str = ""
    """The machine's start that the times are since."""
    ended: tuple[str, ...] = ()
    """Workers that were ended for it."""

    @property
    def over(self) -> float:
        """When workers are to be ended; infinite if that isn't known."""
        return math.inf if self.presumed <= 0 else max(self.due, self.heard) + SHARE * self.presumed


class Words:
    """One per agent; for its loop's thread. A disk that takes no writes keeps nothing from being told: then it is in memory alone."""

    def __init__(
        self,
        journal: Journal,
        clock: Callable[[], float],
        elapsed: Callable[[], float],
        log: Callable[[Problem], None],
        boot: str = "",
    ) -> None:
        """`boot` names the machine's start: nothing that was told before it counts, as nothing has lived since."""
        self._journal, self._clock, self._elapsed, self._log, self._boot = journal, clock, elapsed, log, boot
        self._open = {word.notice: word for body in journal.words() if (word := _read(body)) is not None and word.boot == boot}
        self._reports: OrderedDict[float, tuple[float, frozenset[str]]] = OrderedDict()
        self._presumed, self._present = journal.presumed, frozenset[str]()
        self._noted = float("-inf")

    @property
    def open(self) -> tuple[Word, ...]:
        """Those that may still count."""
        return tuple(self._open.values())

    def tell(self, notices: Mapping[str, Notice]) -> None:
        """These are about to be told to whoever asks."""
        now = self._elapsed()
        for notice in notices.values():
            if notice.kind != NoticeKind.PREEMPTION.value or notice.deadline is None:
                continue
            due = now + max(0.0, notice.deadline - self._clock())
            known = self._open.get(notice.id)
            if known is None:
                self._put(Word(notice=notice.id, told=now, due=due, heard=now, presumed=self._presumed, boot=self._boot))
            elif due < known.due - 1.0 or notice.id not in self._present:  # told anew; what was told before may be all that was heard
                self._put(msgspec.structs.replace(known, told=now, due=min(due, known.due)))
        self._present = frozenset(notices)

    def reported(self, at: float, notices: Mapping[str, object], asked_at: float) -> None:
        """A report that says `at`, with these notices, answers a question that came at `asked_at` (by `elapsed`)."""
        same = self._reports.get(at)  # by a clock that stood still, or was set back: what either says may be what was taken in
        first, before = (asked_at, frozenset[str]()) if same is None else same
        self._reports[at] = min(first, asked_at), before | frozenset(notices)
        while len(self._reports) > _REPORTS:
            self._reports.popitem(last=False)

    def heard(self, taken: float, kept: float, presumed: float) -> None:
        """What an engine says with a question: see schemas/agent.proto. 0 for what it doesn't."""
        if presumed > 0 and presumed != self._presumed:
            self._presumed = presumed
            self._try(lambda: self._journal.note_presumed(presumed))
            for word in self.open:
                self._put(msgspec.structs.replace(word, presumed=presumed))
        last = self._reports.get(kept)
        if last is not None:
            for word in self.open:
                if word.told < last[0] and word.notice not in last[1]:
                    self._drop(word)
        heard = self._reports.get(taken)
        if heard is None:
            return
        write = self._elapsed() - self._noted >= _NOTE_S
        for word in self.open:
            if heard[0] > word.heard:
                self._put(msgspec.structs.replace(word, heard=heard[0]), write=write)
        if write:
            self._noted = self._elapsed()

    def due(self) -> Word | None:
        """One whose time is over, so that no worker which could be restored elsewhere may live here; None: there is none."""
        now = self._elapsed()
        return next((word for word in self.open if now >= word.over), None)

    def ended(self, word: Word, worker: str) -> None:
        """A worker was ended because its time was over."""
        self._put(msgspec.structs.replace(word, ended=(*word.ended, worker)))

    def problems(self) -> list[Problem]:
        """What the engine should hear of it, until it has."""
        return [_ended(word) for word in self.open if word.ended]

    def _put(self, word: Word, *, write: bool = True) -> None:
        self._open[word.notice] = word
        if write:
            self._try(lambda: self._journal.put_word(word.notice, msgspec.json.encode(word)))

    def _drop(self, word: Word) -> None:
        del self._open[word.notice]
        self._try(lambda: self._journal.drop_word(word.notice))

    def _try(self, write: Callable[[], None]) -> None:
        try:
            write()
        except Stalled as error:
            self._log(error.problem)


def _read(body: bytes) -> Word | None:
    """None for what no agent wrote."""
    try:
        return msgspec.json.decode(body, type=Word)
    except msgspec.DecodeError:
        return None


def _ended(word: Word) -> Problem:
    several = len(word.ended) > 1
    return Problem(
        code="SH681",
        what=f"{', '.join(word.ended)} {'were' if several else 'was'} ended here: an engine was told of {word.notice}, its deadline"
        " was over, and no engine was heard of that knew this node to live",
        remedy="Nothing to do: what an engine takes for dead it restores elsewhere, and no worker may live twice",
        subject=word.notice,
    )
