"""All sources of a node's notices, tried before anything depends on them: each is asked once, and each one's canary is let fly."""

import time
from collections.abc import Callable
from typing import Final

from shunter.model.errors import Problem, ShunterError

from shunter_agent.notices.canary import Canary, stands
from shunter_agent.notices.port import NoticeSource
from shunter_agent.notices.sources import sources
from shunter_agent.notices.watching import Watching
from shunter_agent.settings import Settings

WITHIN_S: Final = 150.0
"""The longest that all sources together are waited for. Azure's first answer takes up to two minutes; most take a moment."""
_LOOK_S: Final = 0.02
_FIRST_S: Final = 0.3
"""What a source that isn't asked (a folder, a log) has to find its fault."""


def trial(settings: Settings, *, clock: Callable[[], float] = time.time, within: float = WITHIN_S) -> tuple[Problem, ...]:
    """What would keep the node's end from being heard of. Changes nothing, and acknowledges nothing.

    `clock` gives seconds since the epoch; `within` is how many seconds the sources are waited for.
    """
    try:
        found = sources(settings, empty=lambda: False, clock=clock, log=_quiet)
        problems = _asked(found, within)
    except (ShunterError, OSError) as error:
        return (error.problem if isinstance(error, ShunterError) else _unusable(error),)
    birds = [Canary(name, stand, every=0.0, clock=clock) for name, stand in stands(settings, clock).items()]
    for bird in birds:
        bird.rehearse()
    return (*problems, *(problem for bird in birds for problem in bird.health()))


def _asked(found: list[NoticeSource], within: float) -> tuple[Problem, ...]:
    began = time.monotonic()
    for source in found:
        source.start(lambda _notices: None)
    try:
        while time.monotonic() - began < _FIRST_S or (time.monotonic() - began < within and not all(_done(source) for source in found)):
            time.sleep(_LOOK_S)
        return tuple(problem for source in found for problem in _wrong(source))
    finally:
        for source in found:
            source.stop()


def _done(source: NoticeSource) -> bool:
    return not isinstance(source, Watching) or not source.asked()[0]


def _wrong(source: NoticeSource) -> tuple[Problem, ...]:
    if not isinstance(source, Watching):
        return source.health()
    waits, failed = source.asked()
    late = (
        Problem(code="SH643", what=f"{name} hasn't answered", remedy="Look at what it is that is asked", subject=source.name)
        for name in waits
    )
    return (*failed, *late, *source.besides())


def _unusable(error: OSError) -> Problem:
    what = f"a source of notices can't be watched: {error}"
    return Problem(code="SH642", what=what, remedy="Check the folders and files in the agent's settings")


def _quiet(_problem: Problem) -> None:
    """All of it is in the answer."""
