"""One commit as it was signed: its tree, its parents, and what git says of its signature by keys of ours."""

import enum
import re
from typing import Final

import msgspec

from shunter.model.ids import Commit
from shunter.source.command import Git
from shunter.source.keys import Keys
from shunter.source.limits import printable
from shunter.source.process import Ended
from shunter.source.tree import Unsound, object_id

_COMMIT_BYTES: Final = 2**20
_SSH: Final = re.compile(r'^Good "git" signature (?:for (.*) )?with \S+ key (SHA256:\S+)', re.MULTILINE)
_HEADERS: Final = ("gpgsig", "gpgsig-sha256")


class Kind(enum.StrEnum):
    """What a signature is made with."""

    SSH = "SSH"
    OPENPGP = "OpenPGP"
    OTHER = "unknown"


class State(enum.StrEnum):
    """What is to be said of a signature; each but GOOD is the end of a sentence about a commit."""

    GOOD = "is signed by a known key"
    NONE = "isn't signed"
    UNKNOWN = "is signed by a key that isn't among the signers, or wasn't when it was made"
    BAD = "has a signature that doesn't fit it"
    EXPIRED = "is signed by a key, or has a signature, that has expired"
    REVOKED = "is signed by a key that was revoked"


class Made(msgspec.Struct, frozen=True, kw_only=True):
    """A commit's own bytes, as far as they matter here. `kind` is None for one without a signature."""

    id: Commit
    tree: str
    parents: tuple[Commit, ...]
    kind: Kind | None


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """`who` is the signer's name in the keys, `key` the key's fingerprint or id: empty when unknown."""

    state: State
    who: str = ""
    key: str = ""

    def __str__(self) -> str:
        return f"{self.who or 'somebody'} ({self.key})" if self.key else self.who or "somebody"


def read(git: Git, commit: Commit) -> Made:
    """The commit's object, checked against its id. Raises Unsound when it isn't here, isn't a commit, or is larger than 1 MiB."""
    ended = git.run("cat-file", "--batch", given=f"{commit}\n".encode(), output_bytes=_COMMIT_BYTES)
    head, _, rest = ended.output.partition(b"\n")
    words = head.decode(errors="replace").split(" ")
    if ended.code != 0 or words[:2] != [commit, "commit"] or not words[-1].isdecimal():
        raise Unsound(commit)
    data = rest[: int(words[2])]
    if object_id(data, commit, "commit") != commit:
        raise Unsound(commit)
    return _parse(commit, data)


def _parse(commit: Commit, data: bytes) -> Made:
    fields: list[tuple[str, str]] = []
    for line in data.partition(b"\n\n")[0].decode(errors="replace").split("\n"):
        if not line.startswith(" "):  # the lines of a field after its first
            name, _, value = line.partition(" ")
            fields.append((name, value))
    trees = [value for name, value in fields if name == "tree"]
    if len(trees) != 1:
        raise Unsound(commit)
    parents = tuple(Commit(value) for name, value in fields if name == "parent")
    signed = [value for name, value in fields if name in _HEADERS]
    return Made(id=commit, tree=trees[0], parents=parents, kind=_kind(signed[0]) if signed else None)


def _kind(first: str) -> Kind:
    if "BEGIN SSH SIGNATURE" in first:
        return Kind.SSH
    return Kind.OPENPGP if "BEGIN PGP" in first else Kind.OTHER


def verify(git: Git, made: Made, keys: Keys) -> Signature:
    """What git says of a commit's signature by these keys alone."""
    if made.kind is None:
        return Signature(state=State.NONE)
    if (made.kind is Kind.SSH and keys.allowed is None) or (made.kind is Kind.OPENPGP and keys.home is None) or made.kind is Kind.OTHER:
        return Signature(state=State.UNKNOWN, who=f"{made.kind.value} signature")
    settings = (
        ("gpg.ssh.program", "ssh-keygen"),
        ("gpg.ssh.allowedSignersFile", str(keys.allowed or "/dev/null")),
        ("gpg.program", "gpg"),
        ("gpg.openpgp.program", "gpg"),
        ("gpg.x509.program", "/bin/false"),
        ("gpg.minTrustLevel", "undefined"),
    )
    ended = git.run("verify-commit", "--raw", made.id, settings=settings, environment={"GNUPGHOME": str(keys.home or "/nonexistent")})
    return _of_ssh(ended) if made.kind is Kind.SSH else _of_openpgp(ended)


def _of_ssh(ended: Ended) -> Signature:
    found = _SSH.search(ended.error)
    who, key = (printable(found.group(1) or ""), found.group(2)) if found else ("", "")
    if ended.code == 0 and who:
        return Signature(state=State.GOOD, who=who, key=key)
    return Signature(state=State.UNKNOWN if found else State.BAD, key=key)


def _of_openpgp(ended: Ended) -> Signature:
    lines = [line.split(" ", 3)[1:] for line in ended.error.splitlines() if line.startswith("[GNUPG:] ")]
    told = {words[0]: words[1:] for words in lines if words}
    if ended.code == 0 and "GOODSIG" in told and "VALIDSIG" in told:
        return Signature(state=State.GOOD, who=printable(told["GOODSIG"][-1]), key=told["VALIDSIG"][-1].split()[-1])
    for word, state in (
        ("REVKEYSIG", State.REVOKED),
        ("EXPKEYSIG", State.EXPIRED),
        ("EXPSIG", State.EXPIRED),
        ("BADSIG", State.BAD),
        ("NO_PUBKEY", State.UNKNOWN),
        ("ERRSIG", State.BAD),
    ):
        if word in told:
            return Signature(state=state, key=told[word][0])
    return Signature(state=State.BAD)
