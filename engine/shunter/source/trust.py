"""Whether a commit may come into force by who signed it. The rule and its reasons: docs/decisions/0015-who-may-change-policies.md.

A commit is trusted if an author signed it; or if it is in what was trusted before; or if the forge signed it, it is a merge of two trusted
commits, and its content is what git itself makes of merging them. So nothing comes into force that no author signed.
"""

import enum
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from shunter.model.errors import Problem, Rejected, Stalled
from shunter.model.ids import Commit
from shunter.source import signature
from shunter.source.command import Git
from shunter.source.keys import Keys, Signers, prune, take
from shunter.source.signature import Made, Signature, State
from shunter.source.tree import Unsound

MAX_COMMITS: Final = 5_000
"""More new commits than this are not judged one by one in one fetch."""
_FULL_ID: Final = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")
_FORGED = "SH242"


class Mode(enum.StrEnum):
    """Which new commits must be trusted."""

    OFF = "off"
    HEAD = "head"
    """The newest: who signs it answers for all that it contains."""
    FIRST_PARENT = "first-parent"
    """Each that the branch itself went through, and of a merge by the forge also what it brings in."""
    EVERY = "every"
    """Each, also those that came by a merge."""


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """By whom policies may be changed. `since` is the full id of a commit that somebody looked at: it and all before it are trusted."""

    mode: Mode = Mode.OFF
    authors: Signers = Signers()
    forge: Signers = Signers()
    since: str | None = None

    def check(self) -> None:
        """Raises Rejected SH246 for settings that contradict themselves."""
        if self.mode is Mode.OFF and (self.authors or self.forge or self.since):
            raise _contradiction(
                "signers are named, but the mode is off, so nothing would be checked", "Name a mode: head, first-parent or every"
            )
        if self.mode is not Mode.OFF and not self.authors:
            raise _contradiction("signatures are to be checked, but no author's keys are named", "Name `signers`, `openpgp`, or both")
        if self.since is not None and not _FULL_ID.fullmatch(self.since):
            raise _contradiction(f"{self.since!r} isn't the full id of a commit", "Give all 40 (or 64) hexadecimal digits")


def _contradiction(what: str, remedy: str) -> Rejected:
    return Rejected(Problem(code="SH246", what=what, remedy=remedy, subject="policies.trust"))


class _Doubt(Exception):
    """A commit isn't trusted: the code, and the end of a sentence that begins with the commit."""

    def __init__(self, code: str, why: str) -> None:
        super().__init__(why)
        self.code, self.why = code, why


class Judge:
    """Judges the commits of one clone. `folder` is for copies of the keys, and belongs to it alone. `branch` is for messages."""

    def __init__(self, git: Git, trust: Trust, folder: Path, branch: str) -> None:
        """Raises Rejected SH246 for a trust that contradicts itself. Touches nothing."""
        trust.check()
        self._git, self._trust, self._folder, self._branch = git, trust, folder, branch
        self._last: tuple[tuple[object, ...], str | Problem] | None = None
        """The newest judgement and what it was about: a poll that finds all as it was needn't hear it again."""

    @property
    def wanted(self) -> bool:
        """Signatures are checked at all."""
        return self._trust.mode is not Mode.OFF

    def judge(self, new: Commit, good: Commit | None) -> str:
        """Who signed `new`, for people, when it may follow `good`, the last commit that was trusted (None: there was none).

        When they are the same, only whether its signer is still among the keys. Raises Stalled: SH240 to SH242 when a commit isn't trusted,
        SH243 when there are too many to judge, or `since` isn't in the branch. Raises Retry SH244 and SH245 when keys can't be had.
        """
        authors, forge = take(self._trust.authors, self._folder), take(self._trust.forge, self._folder)
        prune(self._folder, authors, forge)
        if authors.ids & forge.ids:
            what = "one and the same key is an author's and the forge's"
            raise Stalled(Problem(code="SH244", what=what, remedy="Take it out of one of them", subject="policies.trust"))
        key = (new, good, authors.digest, forge.digest)
        if self._last is None or self._last[0] != key:
            self._last = (key, self._heard(new, good, authors, forge))
        said = self._last[1]
        if isinstance(said, Problem):
            raise Stalled(said)
        return said

    def _heard(self, new: Commit, good: Commit | None, authors: Keys, forge: Keys) -> str | Problem:
        try:
            return _Case(self._git, self._trust, authors, forge, good).hear(new)
        except _Refused as refused:
            return self._problem(new, good, refused)

    def _problem(self, new: Commit, good: Commit | None, refused: "_Refused") -> Problem:
        stays = f"{good} stays in force" if good else "no policies are in force until one is trusted"
        which = f"commit {refused.commit}" if refused.commit else f"branch {self._branch}"
        if refused.commit not in (new, None):
            which += f", which the newest commit {new} of branch {self._branch} comes with,"
        if good == new:
            stays = "it was trusted before and stays in force until a newer one is"
        return Problem(code=refused.code, what=f"{which} {refused.why}; {stays}", remedy=refused.remedy, subject=new)


class _Refused(Exception):
    """What to tell. `commit` is None where no single one is at fault."""

    def __init__(self, commit: Commit | None, code: str, why: str, remedy: str) -> None:
        super().__init__(why)
        self.commit, self.code, self.why, self.remedy = commit, code, why, remedy


class _Case:
    """One judgement."""

    def __init__(self, git: Git, trust: Trust, authors: Keys, forge: Keys, good: Commit | None) -> None:
        self._git, self._trust, self._authors, self._forge = git, trust, authors, forge
        self._before = [Commit(c) for c in (good, trust.since) if c]
        """They and all that they contain was judged."""
        self._known: list[Commit] = []
        """They and all that they contain may be built on."""
        self._verdicts: dict[Commit, _Doubt | None] = {}
        self._signers: dict[Commit, str] = {}
        self._read: dict[Commit, tuple[Made, Signature, Signature]] = {}

    def hear(self, new: Commit) -> str:
        self._check_since(new)
        # after a rewind, what the commit before contains isn't below the new one: an older content of it may not come back by a merge
        self._known = [commit for commit in self._before if self._contains(commit, new)]
        if new == self._trust.since:
            return "named in the settings"
        for commit in self._to_judge(new):
            doubt = self._doubt(commit)
            if doubt is not None:
                raise _Refused(commit, doubt.code, doubt.why, self._remedy(doubt.code, commit == new))
        return self._signers.get(new, "")

    def _check_since(self, new: Commit) -> None:
        since = self._trust.since
        if since is not None and not self._contains(Commit(since), new):
            remedy = "Name a commit of this branch in policies.trust.since, or push the branch that contains it"
            raise _Refused(None, "SH243", f"doesn't contain {since}, from where on it is trusted", remedy)

    def _to_judge(self, new: Commit) -> Sequence[Commit]:
        """The oldest first, so that the one that is told is where it begins. Of a repository never seen before, the newest alone."""
        if self._trust.mode is Mode.HEAD or not self._before:
            return (new,)
        options = ("--first-parent",) if self._trust.mode is Mode.FIRST_PARENT else ()
        without = [f"^{commit}" for commit in self._before]
        listed = self._git.run("rev-list", "--reverse", "--topo-order", *options, new, *without, "--", output_bytes=(MAX_COMMITS + 1) * 65)
        commits = [Commit(line) for line in listed.output.decode().split()]
        if listed.cut or len(commits) > MAX_COMMITS:
            raise self._too_many()
        if listed.code != 0:
            raise Unsound(new)
        # what was trusted before is looked at again by itself: signers may be gone, or the branch rewound to it
        return commits if new in commits else (*commits, new)

    def _too_many(self) -> _Refused:
        remedy = "Look at them, and name a commit close to the newest in policies.trust.since"
        return _Refused(None, "SH243", f"brings more than {MAX_COMMITS:,} commits to judge at once", remedy)

    # -- one commit

    def _doubt(self, commit: Commit) -> _Doubt | None:
        """Why it isn't trusted, or None. Without recursion: a chain of merges can be longer than Python's stack."""
        waiting = [commit]
        while waiting:
            current = waiting[-1]
            if current in self._verdicts:
                waiting.pop()
                continue
            if len(self._verdicts) + len(waiting) > MAX_COMMITS:
                raise self._too_many()
            first = next(self._needs(current), None)
            if first is not None:
                waiting.append(first)
        return self._verdicts[commit]

    def _needs(self, commit: Commit) -> Iterator[Commit]:
        """Commits to judge before this one can be; when there are none, its verdict stands."""
        made, by_author, by_forge = self._signed(commit)
        if by_author.state is State.GOOD:
            self._signers[commit] = str(by_author)
            self._verdicts[commit] = None
            return
        if by_forge.state is not State.GOOD:
            self._verdicts[commit] = _of_signature(by_author)
            return
        if len(made.parents) == 2:
            yield from (p for p in made.parents if p not in self._verdicts and not self._settled(p))
        self._signers[commit] = f"{by_forge}, the forge"
        self._verdicts[commit] = self._of_merge(made)

    def _settled(self, commit: Commit) -> bool:
        """It is in what is trusted already."""
        if not any(self._contains(commit, known) for known in self._known):
            return False
        self._verdicts[commit] = None
        return True

    def _of_merge(self, made: Made) -> _Doubt | None:
        """Of a commit that the forge signed, whose parents have their verdicts."""
        if len(made.parents) != 2:
            return _Doubt(_FORGED, "is signed by the forge and no merge of two commits (a squash, a rebase, an edit in the browser)")
        for parent in made.parents:
            doubt = self._verdicts[parent]
            if doubt is not None:
                return _Doubt(_FORGED, f"is a merge by the forge of {parent}, which {doubt.why}")
        ours, theirs = made.parents
        merged = self._git.run("merge-tree", "--write-tree", "--no-messages", ours, theirs)
        if merged.code != 0:
            return _Doubt(_FORGED, "is a merge by the forge of what can't be merged without a person: nobody signed how it was settled")
        if merged.output.decode().strip() != made.tree:
            return _Doubt(_FORGED, "is a merge by the forge that holds something else than its two sides make together")
        return None

    def _signed(self, commit: Commit) -> tuple[Made, Signature, Signature]:
        """The commit, its signature by the authors' keys, and, if that isn't good, by the forge's."""
        if commit not in self._read:
            made = signature.read(self._git, commit)
            by_author = signature.verify(self._git, made, self._authors)
            by_forge = by_author if by_author.state is State.GOOD else signature.verify(self._git, made, self._forge)
            self._read[commit] = (made, by_author, by_forge)
        return self._read[commit]

    def _contains(self, old: Commit, new: Commit) -> bool:
        return old == new or self._git.run("merge-base", "--is-ancestor", old, new).code == 0

    def _remedy(self, code: str, newest: bool) -> str:
        if self._trust.mode is Mode.HEAD or (newest and not self._before):
            return "Push a commit on top of it that an author signs (git commit -S), or add its signer's key to the authors'"
        if code == _FORGED:
            return "Merge on a machine of your own and sign the merge (git merge -S), or look at it and name it in policies.trust.since"
        return "Sign it again (git rebase -S), add its signer's key to the authors', or look at it and name it in policies.trust.since"


def _of_signature(one: Signature) -> _Doubt:
    if one.state is State.NONE:
        return _Doubt("SH240", "isn't signed")
    return _Doubt("SH241", f"{one.state.value}{_by(one)}")


def _by(one: Signature) -> str:
    told = " ".join(filter(None, (one.who, one.key)))
    return f" ({told})" if told else ""
