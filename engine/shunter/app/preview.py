"""A preview: what the engine would decide, from the same inputs by the same function, without carrying it out."""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from shunter.app.again import rates_of
from shunter.app.assumed import Assumed
from shunter.app.looking import Seen, look, look_again
from shunter.app.policies import PolicyFeed
from shunter.app.recording import Recording
from shunter.app.settings import Settings
from shunter.app.sources import source_of
from shunter.app.turns import turns
from shunter.app.unseen import Veiled, veiled
from shunter.decide.evaluate import evaluate
from shunter.decide.profile import Profile
from shunter.lang.bulk import BulkCelRules
from shunter.model.errors import Problem, Retry
from shunter.model.expression import Rules
from shunter.model.plan import Evaluation
from shunter.model.policy import PolicySet
from shunter.model.snapshot import Snapshot
from shunter.report.kept import Rate


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """What was seen and decided. `unreachable` says why nodes didn't answer, `remarks` what else a reader must know, in sentences."""

    snapshot: Snapshot
    evaluation: Evaluation
    policies: PolicySet
    unreachable: tuple[Problem, ...] = ()
    remarks: tuple[str, ...] = ()
    again: Mapping[str, Rate] = {}
    """How fast workers compute context again, by GPU model."""
    recording: Recording | None = None
    """All that it was decided on; None only where a test made the preview."""
    known: Veiled | None = None
    """What was known of the recording's past; None as with `recording`."""


async def preview(
    settings: Settings, cache: Path, notices: Sequence[Assumed] = (), *, now: float | None = None, at: float | None = None
) -> Preview:
    """Look and decide once, at `now` (seconds since the epoch; None: the clock's). `cache` is a folder for a clone of the policies.

    With `at`, decide as of that past instant (see `looking.look`). Raises what `policies_of` and `look` raise.
    """
    moment = time.time() if now is None else now
    policies = await policies_of(settings, cache, moment)
    (seen,) = await look(settings, [policies], notices, now=moment, at=at)
    found = decided(policies, seen)
    late = turns(found.evaluation.plan, seen.recording.state.active, settings.limits.voluntary)
    return msgspec.structs.replace(found, remarks=(*found.remarks, *late))


def preview_again(recording: Recording, policies: PolicySet, notices: Sequence[Assumed] = (), profile: Profile | None = None) -> Preview:
    """Decide on what was recorded. `profile` counts where the recording has none of its own. Raises Rejected SH912 as `look_again` does."""
    (seen,) = look_again(recording, [policies], notices)
    return decided(policies, seen, profile)


def decided(policies: PolicySet, seen: Seen, profile: Profile | None = None, rules: Rules | None = None) -> Preview:
    """Decide on what was seen: the only place where a preview of any kind does. `rules` can be shared between calls."""
    recording = seen.recording
    rules = rules or BulkCelRules()
    known = veiled(recording, policies, rules)
    rates = recording.profile or profile or Profile()
    evaluation = evaluate(policies, known.snapshots, recording.state, recording.at, known.rules(rules), rates)
    return Preview(
        snapshot=known.snapshots[-1],
        evaluation=evaluation,
        policies=policies,
        unreachable=seen.unreachable,
        remarks=(*seen.remarks, *known.remarks),
        again=rates_of(policies, known.snapshots[-1].fleet),
        recording=msgspec.structs.replace(recording, profile=rates),
        known=known,
    )


async def policies_of(settings: Settings, cache: Path, now: float) -> PolicySet:
    """The policies of the configured source. Raises Retry with what keeps them from being read."""
    feed = PolicyFeed(source_of(settings.policies, cache), lambda: now)
    await feed.refresh()
    if feed.current is None:
        raise Retry(feed.problem or Problem(code="SH209", what="no policies could be read", remedy="Look at the policy source"))
    return feed.current
