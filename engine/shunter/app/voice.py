"""What a leading engine says: to the audit, and to people once for as long as it is so."""

from collections.abc import Callable, Mapping, Sequence

from shunter.app.duty import Duty
from shunter.audit.trail import Trail
from shunter.model.canon import plain
from shunter.model.errors import Problem
from shunter.model.ids import Commit, Epoch
from shunter.model.record import Record, RecordKind


class Voice:
    """Records of the engine itself and of its inputs, and problems that are told once."""

    def __init__(self, trail: Trail, epoch: Epoch, clock: Callable[[], float], tell: Callable[[Problem], None]) -> None:
        self._trail, self._epoch, self._clock, self._people = trail, epoch, clock, tell
        self._said: dict[str, Problem] = {}
        self._several: dict[str, Mapping[tuple[str, str], Problem]] = {}
        self.commit: Callable[[], Commit | None] = lambda: None
        """Of the policies in force, for the records."""

    @classmethod
    def of(cls, duty: Duty, trail: Trail, epoch: Epoch) -> "Voice":
        """The one of an engine with this duty."""

        def tell(problem: Problem) -> None:
            duty.metrics.told.labels(problem.code).inc()
            duty.on_problem(problem)

        voice = cls(trail, epoch, duty.clock, tell)
        voice.commit = lambda: duty.feed.current.commit if duty.feed.current else None
        return voice

    def record(self, kind: RecordKind, subject: str, what: str, body: Mapping[str, object] | None = None) -> None:
        """One line of the audit."""
        self._trail.add([self.made(kind, subject, what, body)])

    def made(self, kind: RecordKind, subject: str, what: str, body: Mapping[str, object] | None = None) -> Record:
        """The line, for who has more to add with it."""
        return Record(
            at=self._clock(), kind=kind, subject=subject, what=what, epoch=self._epoch, commit=self.commit(), body=dict(body or {})
        )

    def tell(self, problem: Problem) -> None:
        """Say a problem once for as long as it is the same."""
        key = f"{problem.code} {problem.subject}"
        if self._said.get(key) != problem:
            self._said[key] = problem
            self._people(problem)

    def tell_or_clear(self, key: str, problem: Problem | None) -> None:
        """Record and say that an input went away, or with None that it came back, once each."""
        before = self._said.get(key)
        if problem is None:
            if before is not None:
                del self._said[key]
                self.record(RecordKind.SOURCE, key, "is back")
        elif before is None or (before.code, before.subject) != (problem.code, problem.subject):  # another commit refused is news
            self._said[key] = problem
            self._people(problem)
            self.record(RecordKind.SOURCE, key, problem.what, {"problem": plain(problem)})

    def tell_each(self, key: str, problems: Sequence[Problem]) -> None:
        """As `tell_or_clear`, where several things may be wrong at once: one that lasts hides none that comes."""
        before = self._several.get(key, {})
        if not problems and not before:
            return
        now: dict[tuple[str, str], Problem] = {}
        for problem in problems:
            now.setdefault((problem.code, problem.subject), problem)
        self._several[key] = now
        for news in sorted(now.keys() - before.keys()):
            self._people(now[news])
            self.record(RecordKind.SOURCE, key, now[news].what, {"problem": plain(now[news])})
        over = sorted(before.keys() - now.keys())
        if over and not now:
            self.record(RecordKind.SOURCE, key, "is back")
            return
        for code, subject in over:
            self.record(RecordKind.SOURCE, key, f"{code} {subject}".rstrip() + " is over")
