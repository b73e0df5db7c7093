"""What nodes would do by themselves, as a preview finds it: by the same function by which an engine gives them their standing orders."""

from collections.abc import Mapping

import msgspec

from shunter.app.preview import Preview
from shunter.decide.profile import Profile
from shunter.decide.standing import alone, fallbacks
from shunter.lang.bulk import BulkCelRules
from shunter.model.ids import NoticeId, WorkerId
from shunter.model.operation import EngineState


def alone_in(seen: Preview) -> Mapping[NoticeId, Mapping[WorkerId, str]]:
    """By open notice, what is done about each worker on its node while no engine is there, in words.

    It is worked out without the notices: a node's order was given before they came, and names who held what then.
    """
    recording, calm = seen.recording, msgspec.structs.replace(seen.snapshot, notices=())
    state = recording.state if recording is not None else EngineState()
    profile = (recording.profile if recording is not None else None) or Profile()
    found = fallbacks(seen.policies, calm, state, seen.snapshot.at, BulkCelRules(), profile)
    return {notice.id: alone(notice, seen.snapshot, found) for notice in seen.snapshot.notices}
