"""What a forge has to be able to do, and the one comment over it."""

from typing import Final, Literal, Protocol

import msgspec

from shunter.model.errors import Problem, Unknown

_ROUNDS: Final = 5
"""How often it is begun anew when others change the comments in between."""

Outcome = Literal["posted", "updated", "unchanged"]


class Comment(msgspec.Struct, frozen=True, kw_only=True):
    """A comment on the pull request that we wrote ourselves. Ids rise with time."""

    id: int
    body: str


class Forge(Protocol):
    """One pull request. All raise Rejected when it is refused, Retry when there is no answer within the time, and nothing was done."""

    def ours(self, mark: str) -> list[Comment]:
        """All comments that begin with `mark` and that we wrote, oldest first. One that somebody else wrote isn't ours, whatever it says:
        its author could change what it says later.
        """
        ...

    def create(self, body: str) -> None:
        """Post one. Raises Unknown when it may have been posted: look before it is tried again."""
        ...

    def update(self, comment: int, body: str) -> bool:
        """Replace one's text. False: it is gone."""
        ...

    def delete(self, comment: int) -> None:
        """Remove one, if it is still there."""
        ...


def put(forge: Forge, mark: str, body: str) -> Outcome:
    """Have exactly one comment of ours with `mark`, and `body` in it.

    What may have been posted is looked for before it is posted again. Where two runs post at the same time, each keeps the oldest and
    removes the others. Raises what the forge raises, and Unknown when it isn't known in the end whether the comment was posted.
    """
    posted = False
    unknown: Unknown | None = None
    for _ in range(_ROUNDS):
        found = forge.ours(mark)
        if not found and posted:
            return "posted"  # the list is behind: it is not posted again
        if not found:
            try:
                forge.create(body)
                posted, unknown = True, None
            except Unknown as error:
                unknown = error
            continue
        outcome = _settle(forge, found, body)
        if outcome is not None:
            return "posted" if posted or unknown else outcome
    raise unknown or Unknown(
        Problem(
            code="SH990",
            what=f"the comment was gone again each of {_ROUNDS} times that it was looked for",
            remedy="Look at what else writes comments there",
            subject=mark,
        )
    )


def _settle(forge: Forge, found: list[Comment], body: str) -> Outcome | None:
    """The oldest with the text, the others gone. None: the oldest has gone meanwhile."""
    first, *others = found
    same = _same(first.body, body)
    if not same and not forge.update(first.id, body):
        return None
    for other in others:
        forge.delete(other.id)
    return "unchanged" if same else "updated"


def _same(there: str, body: str) -> bool:
    """Forges bring line ends into their own form."""
    return there.replace("\r\n", "\n").strip() == body.replace("\r\n", "\n").strip()
