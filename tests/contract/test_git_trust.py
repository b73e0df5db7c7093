"""Who may change policies: real commits, signed with ssh-keygen and gpg, merged as forges merge, and every way to get past that."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from shunter.model.errors import Rejected, Retry, ShunterError, Stalled
from shunter.source.git import GitSource
from shunter.source.keys import Signers
from shunter.source.trust import Mode, Trust
from signing import ENV, Key, Repository, gpg, openpgp_keys

MODES = (Mode.HEAD, Mode.FIRST_PARENT, Mode.EVERY)


class Keys:
    """alice and bob are authors by SSH, carol by OpenPGP; `forge` merges; mallory and mary (OpenPGP) are nobody."""

    def __init__(self, folder: Path, pgp: list[Key]) -> None:
        self.alice, self.bob, self.forge, self.mallory = (Key(name, folder) for name in ("alice", "bob", "forge", "mallory"))
        self.carol, self.mary, self.web = pgp


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keys]:
    folder = tmp_path_factory.mktemp("k")
    with openpgp_keys(folder / "gnupg", "carol", "mary", "web-flow") as pgp:
        yield Keys(folder, pgp)


@pytest.fixture
def remote(tmp_path: Path) -> Repository:
    return Repository(tmp_path / "remote")


class Place:
    """The signers' files of one test, and sources that go by them."""

    def __init__(self, folder: Path, keys: Keys) -> None:
        self.folder = folder
        self.signers, self.forge = folder / "allowed_signers", folder / "forge_signers"
        self.openpgp = folder / "keys"
        self.openpgp.mkdir()
        self.signers.write_text("# authors\n" + keys.alice.signer + keys.bob.signer)
        self.forge.write_text(keys.forge.signer)
        (self.openpgp / "carol.asc").write_text(keys.carol.public)

    def source(self, remote: Repository, mode: Mode = Mode.HEAD, *, since: str | None = None, rewind: bool = False) -> GitSource:
        authors = Signers(ssh=self.signers, openpgp=self.openpgp)
        trust = Trust(mode=mode, authors=authors, forge=Signers(ssh=self.forge), since=since)
        return GitSource(str(remote.path), "main", "policies", self.folder / "cache", trust=trust, allow_rewind=rewind)


@pytest.fixture
def place(tmp_path: Path, keys: Keys) -> Place:
    return Place(tmp_path, keys)


def refused(git: GitSource) -> ShunterError:
    """What a fetch raises; whatever was good before must be there still."""
    before = good(git)
    with pytest.raises(ShunterError) as caught:
        git.fetch()
    assert good(git) == before
    return caught.value


def good(git: GitSource) -> str | None:
    try:
        return git.read().commit
    except Retry as error:
        assert error.problem.code == "SH209"  # noqa: PT017  (nothing good yet)
        return None


# -- signatures


@pytest.mark.parametrize("who", ["alice", "carol"])
@pytest.mark.parametrize("mode", MODES)
def test_commits_by_authors_come_into_force_and_say_by_whom(remote: Repository, place: Place, keys: Keys, mode: Mode, who: str) -> None:
    author: Key = getattr(keys, who)
    git = place.source(remote, mode)
    for _ in range(2):
        commit = remote.commit(author)
        assert git.fetch() == commit
        assert who in git.read().signed_by
    assert place.source(remote, mode).fetch() == commit, "a new process agrees"
    key = "SHA256:" if author.home is None else gpg(author.home, "--with-colons", "--list-keys", who).split("fpr:::::::::")[1].split(":")[0]
    assert key in git.read().signed_by


@pytest.mark.parametrize("who", ["mallory", "mary", None])
@pytest.mark.parametrize("mode", MODES)
def test_commits_by_nobody_known_keep_the_last_good_one_in_force(
    remote: Repository, place: Place, keys: Keys, mode: Mode, who: str | None
) -> None:
    first = remote.commit(keys.alice)
    git = place.source(remote, mode)
    git.fetch()
    stranger = getattr(keys, who) if who else None
    bad = remote.commit(stranger)
    error = refused(git)
    assert isinstance(error, Stalled)
    assert (error.problem.code, error.problem.subject) == ("SH241" if who else "SH240", bad)
    assert bad in error.problem.what
    assert f"{first} stays in force" in error.problem.what
    assert "author" in error.problem.remedy
    if who == "mallory":
        assert "SHA256:" in error.problem.what, "the reader must be able to look for the key"
    assert refused(git).problem == error.problem
    newer = remote.commit(keys.bob)
    if mode is Mode.HEAD:
        assert git.fetch() == newer, "who signs the newest answers for what it contains"
    else:
        assert bad in refused(git).problem.what, "the one in between is still there"


def test_keys_are_read_anew_at_each_fetch(remote: Repository, place: Place, keys: Keys) -> None:
    remote.commit(keys.alice)
    git = place.source(remote)
    git.fetch()
    newer = remote.commit(keys.mary)
    assert refused(git).problem.code == "SH241"
    (place.openpgp / "mary.asc").write_text(keys.mary.public)
    assert git.fetch() == newer
    newest = remote.commit(keys.mallory)
    assert refused(git).problem.code == "SH241"
    with place.signers.open("a") as file:
        file.write(keys.mallory.signer)
    assert git.fetch() == newest
    place.signers.write_text(keys.alice.signer)
    remote.commit(keys.mallory)
    assert refused(git).problem.code == "SH241"
    copies = list((place.folder / "cache.keep" / "keys").iterdir())
    assert sorted(copy.name.partition("-")[0] for copy in copies) == ["gnupg", "signers", "signers"], (
        "of the authors and the forge, as they are"
    )


@pytest.mark.parametrize("mode", MODES)
def test_a_signer_that_is_struck_out_is_told_of_while_the_commit_stays_in_force(
    remote: Repository, place: Place, keys: Keys, mode: Mode
) -> None:
    commit = remote.commit(keys.bob)
    place.source(remote, mode).fetch()
    place.signers.write_text(keys.alice.signer)
    git = place.source(remote, mode)
    error = refused(git)
    assert (error.problem.code, error.problem.subject, good(git)) == ("SH241", commit, commit)
    newer = remote.commit(keys.alice)
    assert git.fetch() == newer


def tampered(remote: Repository, commit: str, tree: str) -> str:
    """The same commit, signature and all, with another tree."""
    raw = remote.git("cat-file", "commit", commit)
    other = raw.replace(raw.splitlines()[0], f"tree {tree}") + "\n"
    made = remote.git("hash-object", "-t", "commit", "-w", "--stdin", given=other.encode())
    remote.git("reset", "-q", "--hard", made)
    return made


@pytest.mark.parametrize("who", ["alice", "carol"])
def test_a_signature_of_another_commit_is_worth_nothing(remote: Repository, place: Place, keys: Keys, who: str) -> None:
    remote.commit(keys.alice)
    git = place.source(remote)
    git.fetch()
    signed = remote.commit(getattr(keys, who))
    bad = tampered(remote, signed, remote.git("rev-parse", "HEAD~1^{tree}"))
    error = refused(git)
    assert (error.problem.code, error.problem.subject) == ("SH241", bad)
    assert "doesn't fit" in error.problem.what


def test_a_signature_made_for_something_else_than_git_is_worth_nothing(remote: Repository, place: Place, keys: Keys) -> None:
    """Who signs files with `ssh-keygen -n file` signs no commits by that."""
    remote.commit(keys.alice)
    git = place.source(remote)
    git.fetch()
    payload = remote.git("cat-file", "commit", remote.commit()).encode() + b"\n"
    command = ["ssh-keygen", "-Y", "sign", "-n", "file", "-f", str(keys.alice.file)]
    armored = subprocess.run(command, input=payload, check=True, capture_output=True, env=ENV).stdout.decode().strip()
    head, _, message = payload.decode().partition("\n\n")
    raw = f"{head}\ngpgsig {armored.replace(chr(10), chr(10) + ' ')}\n\n{message}"
    remote.git("reset", "-q", "--hard", remote.git("hash-object", "-t", "commit", "-w", "--stdin", given=raw.encode()))
    assert refused(git).problem.code == "SH241"


def test_an_ssh_key_that_was_valid_until_yesterday(remote: Repository, place: Place, keys: Keys) -> None:
    place.signers.write_text(f'alice valid-before="20200101" {keys.alice.public}\n{keys.bob.signer}')
    remote.commit(keys.alice)
    git = place.source(remote)
    assert refused(git).problem.code == "SH241"
    newer = remote.commit(keys.bob)
    assert git.fetch() == newer


def test_a_certificate_of_an_authority_that_signs_authors_keys(remote: Repository, place: Place, keys: Keys, tmp_path: Path) -> None:
    authority, dave = Key("authority", tmp_path), Key("dave", tmp_path)
    place.signers.write_text(f'*@example.com cert-authority,namespaces="git" {authority.public}\n')
    git = place.source(remote)
    remote.commit(dave)
    assert refused(git).problem.code == "SH241"
    public = dave.file.with_suffix(".pub")
    certify = ("ssh-keygen", "-q", "-s", str(authority.file), "-I", "dave", "-n", "dave@example.com", str(public))
    subprocess.run(certify, check=True, env=ENV)
    dave.file = tmp_path / "dave-cert.pub"
    commit = remote.commit(dave)
    assert git.fetch() == commit
    assert "dave@example.com" in git.read().signed_by
    remote.commit(authority)
    assert refused(git).problem.code == "SH241", "the authority's own key signs keys, not commits"


def test_an_openpgp_key_that_was_revoked(remote: Repository, place: Place, keys: Keys, tmp_path: Path) -> None:
    remote.commit(keys.alice)
    git = place.source(remote)
    git.fetch()
    with openpgp_keys(tmp_path / "g", "dora") as (dora,):
        assert dora.home is not None
        (place.openpgp / "dora.asc").write_text(dora.public)
        commit = remote.commit(dora)
        assert git.fetch() == commit
        (revocation,) = (dora.home / "openpgp-revocs.d").iterdir()
        remote.commit(dora)
        gpg(dora.home, "--import", given=revocation.read_text().replace(":-----", "-----"))
        (place.openpgp / "dora.asc").write_text(gpg(dora.home, "--export", "--armor"))
    error = refused(git)
    assert (error.problem.code, "revoked" in error.problem.what) == ("SH241", True)


def test_an_openpgp_key_that_has_expired(remote: Repository, place: Place, keys: Keys, tmp_path: Path) -> None:
    remote.commit(keys.alice)
    git = place.source(remote)
    git.fetch()
    with openpgp_keys(tmp_path / "g", "egon", expires="1y", conf="faked-system-time 20200101T000000\n") as (egon,):
        (place.openpgp / "egon.asc").write_text(egon.public)
        remote.commit(egon)
    error = refused(git)
    assert (error.problem.code, "expired" in error.problem.what) == ("SH241", True)


def test_sha1_signatures_are_not_taken(remote: Repository, place: Place, keys: Keys) -> None:
    remote.commit(keys.alice)
    git = place.source(remote)
    git.fetch()
    assert keys.carol.home is not None
    conf = keys.carol.home / "gpg.conf"
    conf.write_text("digest-algo SHA1\n")
    try:
        remote.commit(keys.carol)
    finally:
        conf.unlink()
    assert refused(git).problem.code == "SH241"


# -- which commits


@pytest.mark.parametrize(
    ("mode", "between", "beside"),
    [(Mode.HEAD, True, True), (Mode.FIRST_PARENT, False, True), (Mode.EVERY, False, False)],
)
def test_what_each_mode_looks_at(remote: Repository, place: Place, keys: Keys, mode: Mode, between: bool, beside: bool) -> None:
    start = remote.commit(keys.alice)
    git = place.source(remote, mode)
    git.fetch()
    unsigned = remote.commit()
    remote.commit(keys.alice)
    if between:
        assert git.fetch() == remote.head
    else:
        assert unsigned in refused(git).problem.what
        remote.git("reset", "-q", "--hard", start)
    remote.branch("topic", None)
    merged = remote.merge("topic", keys.alice)
    if beside:
        assert git.fetch() == merged
    else:
        error = refused(git)
        assert (error.problem.code, error.problem.subject) == ("SH240", merged)
        assert f"commit {remote.git('rev-parse', 'topic')}, which the newest commit {merged}" in error.problem.what


def test_the_first_commit_ever_is_judged_by_itself_and_since_names_one_that_was_looked_at(
    remote: Repository, place: Place, keys: Keys
) -> None:
    old = remote.commit()
    assert refused(place.source(remote, Mode.EVERY)).problem.code == "SH240"
    assert place.source(remote, Mode.EVERY, since=old).fetch() == old
    shutil.rmtree(place.folder / "cache")
    remote.commit()
    remote.commit(keys.alice)
    assert "stays in force" not in refused(place.source(remote, Mode.EVERY, since=old)).problem.what
    assert good(place.source(remote, Mode.EVERY)) is None
    assert place.source(remote, Mode.EVERY).fetch() == remote.head


def test_since_must_be_in_the_branch(remote: Repository, place: Place, keys: Keys) -> None:
    remote.commit(keys.alice)
    elsewhere = remote.branch("elsewhere", None)
    for since in (elsewhere, "0" * 40):
        error = refused(place.source(remote, since=since))
        assert (error.problem.code, since in error.problem.what) == ("SH243", True)


def test_a_commit_taken_while_nothing_was_checked_is_not_good_later(remote: Repository, place: Place, keys: Keys) -> None:
    unsigned = remote.commit()
    unchecked = GitSource(str(remote.path), "main", "policies", place.folder / "cache")
    assert unchecked.fetch() == unsigned
    git = place.source(remote)
    assert "no policies are in force" in refused(git).problem.what
    with pytest.raises(Rejected) as caught:
        git.read(unsigned)
    assert caught.value.problem.code == "SH247"
    remote.commit(keys.alice)
    assert git.fetch() == git.read().commit == remote.head
    assert git.read(unsigned).commit == unsigned, "it is what a trusted commit contains"


@pytest.mark.parametrize("mode", MODES)
def test_a_rewind_that_is_allowed_goes_to_trusted_commits_only(remote: Repository, place: Place, keys: Keys, mode: Mode) -> None:
    unsigned = remote.commit()
    signed = remote.commit(keys.alice)
    newest = remote.commit(keys.bob)
    git = place.source(remote, mode, rewind=True)
    assert git.fetch() == newest
    remote.git("reset", "-q", "--hard", unsigned)
    assert refused(git).problem.code == "SH240"
    remote.git("reset", "-q", "--hard", signed)
    assert git.fetch() == signed
    assert [problem.code for problem in git.read().problems] == ["SH222"]


@pytest.mark.parametrize("mode", MODES)
def test_a_rewind_that_is_allowed_brings_nothing_back_that_nobody_signed(remote: Repository, place: Place, keys: Keys, mode: Mode) -> None:
    """The newest answers for what it contains, and not for its parent by itself; the forge merges that with something that adds nothing."""
    start = remote.commit(keys.alice)
    unsigned = remote.commit()
    good_one = remote.commit(keys.bob)
    git = place.source(remote, mode, rewind=True)
    assert git.fetch() == good_one
    remote.forge(remote.git("rev-parse", f"{unsigned}^{{tree}}"), (start, unsigned), keys.forge)
    error = refused(git)
    assert (error.problem.code, unsigned in error.problem.what) == ("SH242", True)


def test_more_commits_than_are_judged_at_once(remote: Repository, place: Place, keys: Keys, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shunter.source.trust.MAX_COMMITS", 3)
    remote.commit(keys.alice)
    git = place.source(remote, Mode.EVERY)
    git.fetch()
    for _ in range(3):
        remote.commit(keys.alice)
    assert git.fetch() == remote.head
    for _ in range(4):
        remote.commit(keys.alice)
    assert refused(git).problem.code == "SH243"
    assert place.source(remote, Mode.EVERY, since=remote.git("rev-parse", "HEAD~1")).fetch() == remote.head


# -- the forge


@pytest.mark.parametrize("mode", MODES)
def test_a_merge_by_the_forge_of_what_authors_signed(remote: Repository, place: Place, keys: Keys, mode: Mode) -> None:
    remote.commit(keys.alice)
    git = place.source(remote, mode)
    git.fetch()
    remote.branch("one", keys.bob, keys.carol)
    remote.branch("two", keys.alice)
    remote.merge("one", keys.forge)
    merged = remote.merge("two", keys.forge)
    assert git.fetch() == merged, "two merges between two looks"
    assert git.read().signed_by.endswith("the forge")
    # `Update branch`: the forge merges main into the topic, then the topic into main
    remote.git("checkout", "-q", "-b", "three")
    remote.commit(keys.bob, "three")
    remote.git("checkout", "-q", "main")
    remote.commit(keys.alice, "meanwhile")
    remote.git("checkout", "-q", "three")
    remote.merge("main", keys.forge)
    remote.git("checkout", "-q", "main")
    assert remote.merge("three", keys.forge) == git.fetch()
    assert place.source(remote, mode).fetch() == remote.head


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("stranger", ["mallory", None])
def test_a_merge_by_the_forge_of_what_no_author_signed(
    remote: Repository, place: Place, keys: Keys, mode: Mode, stranger: str | None
) -> None:
    good_one = remote.commit(keys.alice)
    git = place.source(remote, mode)
    git.fetch()
    tip = remote.branch("topic", keys.bob, getattr(keys, stranger) if stranger else None)
    merged = remote.merge("topic", keys.forge)
    error = refused(git)
    assert error.problem.subject == merged
    assert tip in error.problem.what
    assert good_one in error.problem.what
    if mode is not Mode.EVERY:  # there the commit itself is what is wrong
        assert error.problem.code == "SH242"


def test_every_commit_of_a_merged_branch_counts_only_where_that_is_asked(remote: Repository, place: Place, keys: Keys) -> None:
    remote.commit(keys.alice)
    sources = {}
    for mode in MODES:
        sources[mode] = GitSource(
            str(remote.path),
            "main",
            "policies",
            place.folder / mode.value,
            trust=Trust(mode=mode, authors=Signers(ssh=place.signers), forge=Signers(ssh=place.forge)),
        )
        sources[mode].fetch()
    remote.branch("topic", None, keys.bob)
    merged = remote.merge("topic", keys.forge)
    assert sources[Mode.HEAD].fetch() == sources[Mode.FIRST_PARENT].fetch() == merged
    assert refused(sources[Mode.EVERY]).problem.code == "SH240"


def test_the_forge_can_add_nothing_of_its_own(remote: Repository, place: Place, keys: Keys) -> None:
    """A squash, an edit in the browser, a merge that holds more than its sides, one that settles a conflict, and one of three."""
    start = remote.commit(keys.alice, "shared", "x: 1\n")
    git = place.source(remote)
    git.fetch()
    tip = remote.branch("topic", keys.bob)
    right = remote.git("merge-tree", "--write-tree", start, tip)

    def attempt(tree: str, *parents: str) -> str:
        remote.forge(tree, parents, keys.forge)
        error = refused(git)
        assert error.problem.code == "SH242"
        return error.problem.what

    assert "squash" in attempt(right, start)
    remote.git("checkout", "-q", tip)
    evil = remote.git("rev-parse", f"{remote.commit(None, 'evil')}^{{tree}}")
    remote.git("checkout", "-q", "main")
    assert "something else than its two sides" in attempt(evil, start, tip)
    assert "something else than its two sides" in attempt(remote.git("rev-parse", f"{start}^{{tree}}"), start, tip)
    remote.git("reset", "-q", "--hard", start)
    other = remote.branch("other", keys.alice)
    assert "merge of two" in attempt(right, start, tip, other)
    sides = []
    for number in (2, 3):
        remote.git("reset", "-q", "--hard", start)
        (remote.path / "policies/shared.yaml").write_text(f"x: {number}\n")
        sides.append(remote.commit(keys.alice, "shared", " "))
    assert "without a person" in attempt(remote.git("rev-parse", f"{sides[0]}^{{tree}}"), *sides)
    assert remote.forge(right, (start, tip), keys.forge) == git.fetch(), "the merge itself is what it may make"


def test_an_attribute_in_the_repository_does_not_change_how_a_merge_is_checked(remote: Repository, place: Place, keys: Keys) -> None:
    (remote.path / ".gitattributes").write_text("*.yaml merge=union\n")
    start = remote.commit(keys.alice, "shared", "x: 1\n")
    git = place.source(remote)
    git.fetch()
    sides = []
    for number in (2, 3):
        remote.git("reset", "-q", "--hard", start)
        (remote.path / "policies/shared.yaml").write_text(f"x: {number}\n")
        sides.append(remote.commit(keys.alice, "shared", " "))
    remote.git("reset", "-q", "--hard", sides[0])
    remote.git("branch", "side", sides[1])
    remote.merge("side", keys.forge)  # no conflict here: a working tree's attributes count
    error = refused(git)
    assert (error.problem.code, "without a person" in error.problem.what) == ("SH242", True)


def test_a_forge_that_signs_with_openpgp(remote: Repository, place: Place, keys: Keys) -> None:
    (place.folder / "web.asc").write_text(keys.web.public)
    trust = Trust(mode=Mode.EVERY, authors=Signers(ssh=place.signers), forge=Signers(openpgp=place.folder / "web.asc"))
    git = GitSource(str(remote.path), "main", "policies", place.folder / "cache", trust=trust)
    remote.commit(keys.alice)
    git.fetch()
    remote.branch("topic", keys.bob)
    assert remote.merge("topic", keys.web) == git.fetch()
    remote.commit(keys.web)
    assert refused(git).problem.code == "SH242"
    remote.git("reset", "-q", "--hard", "HEAD~1")
    remote.commit(keys.carol)
    assert refused(git).problem.code == "SH241", "her key is here, but nobody named her"


def test_a_repository_that_the_forge_alone_ever_merged(remote: Repository, place: Place, keys: Keys) -> None:
    """Seen for the first time, the chain of merges is followed down to what an author signed."""
    remote.commit(keys.alice)
    for number in range(4):
        remote.branch(f"topic-{number}", keys.bob)
        remote.merge(f"topic-{number}", keys.forge)
    assert place.source(remote).fetch() == remote.head
    other = Repository(place.folder / "other")
    root = other.commit()
    other.branch("topic", keys.bob)
    merged = other.merge("topic", keys.forge)
    shutil.rmtree(place.folder / "cache")
    error = refused(place.source(other))
    assert (error.problem.code, root in error.problem.what) == ("SH242", True)
    assert place.source(other, since=root).fetch() == merged


# -- nothing else has a say


def test_neither_the_repository_nor_the_user_adds_signers(
    remote: Repository, place: Place, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote.commit(keys.alice)
    git = place.source(remote)
    git.fetch()
    home = place.folder / "home"
    home.mkdir()
    (home / "all").write_text(keys.mallory.signer)
    settings = f'[gpg "ssh"]\n\tallowedSignersFile = {home / "all"}\n\tprogram = /bin/true\n[gpg]\n\tprogram = /bin/true\n'
    for file in (home / ".gitconfig", remote.path / ".gitconfig", remote.path / "config"):
        file.write_text(settings)
    (remote.path / "allowed_signers").write_text(keys.mallory.signer)
    remote.git("config", "gpg.ssh.allowedSignersFile", str(home / "all"))
    monkeypatch.setenv("HOME", str(home))
    assert keys.mary.home is not None
    (home / ".gnupg").symlink_to(keys.mary.home)
    monkeypatch.setenv("GNUPGHOME", str(keys.mary.home))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(home / ".gitconfig"))
    for stranger in (keys.mallory, keys.mary):
        remote.commit(stranger)
        assert refused(git).problem.code == "SH241"


def test_one_key_can_not_be_both(remote: Repository, place: Place, keys: Keys) -> None:
    remote.commit(keys.alice)
    with place.forge.open("a") as file:
        file.write(keys.alice.signer.replace("alice", "another name"[:7]))
    error = refused(place.source(remote))
    assert (error.problem.code, isinstance(error, Stalled)) == ("SH244", True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "can't be read"),
        ("", "names no signer"),
        ("# nobody\n\n", "names no signer"),
        ("alice ssh-ed25519\n", "line 1 isn't"),
        ("ssh-ed25519 KEY\n", "line 1 isn't"),
        ("alice ssh-ed25519 KEY\nnonsense\n", "line 2 isn't"),
    ],
)
def test_signers_that_can_not_be_read_close_the_door(remote: Repository, place: Place, keys: Keys, text: str | None, says: str) -> None:
    good_one = remote.commit(keys.alice)
    git = place.source(remote)
    git.fetch()
    newer = remote.commit(keys.alice)
    place.signers.unlink()
    if text is not None:
        place.signers.write_text(text.replace("KEY", keys.alice.public.split()[1]))
    error = refused(git)
    assert (error.problem.code, error.problem.subject, good(git)) == ("SH244", str(place.signers), good_one)
    assert says in error.problem.what
    place.signers.write_text(keys.alice.signer)
    assert git.fetch() == newer


@pytest.mark.parametrize("content", ["", "nonsense", "private"])
def test_openpgp_files_that_hold_no_public_key(remote: Repository, place: Place, keys: Keys, content: str) -> None:
    assert keys.mary.home is not None
    text = gpg(keys.mary.home, "--export-secret-keys", "--armor", "mary") if content == "private" else content
    remote.commit(keys.alice)
    (place.openpgp / "mary.asc").write_text(text)
    error = refused(place.source(remote))
    assert (error.problem.code, error.problem.subject) == ("SH244", str(place.openpgp / "mary.asc"))
    assert ("private key" in error.problem.what) == (content == "private")
    assert not list((place.folder / "cache.keep").rglob("private-keys*/*"))


def test_keys_mounted_by_kubernetes(remote: Repository, place: Place, keys: Keys) -> None:
    """Links to a folder that is swapped, beside hidden names."""
    data = place.openpgp / "..2026"
    data.mkdir()
    (place.openpgp / "carol.asc").rename(data / "carol.asc")
    (place.openpgp / "..data").symlink_to("..2026")
    (place.openpgp / "carol.asc").symlink_to("..data/carol.asc")
    remote.commit(keys.carol)
    assert place.source(remote).fetch() == remote.head


@pytest.mark.parametrize("program", ["ssh-keygen", "gpg"])
def test_a_program_that_is_not_installed(
    remote: Repository, place: Place, keys: Keys, monkeypatch: pytest.MonkeyPatch, program: str
) -> None:
    remote.commit(keys.alice)
    folder = place.folder / "bin"
    folder.mkdir()
    for name in {"git", "ssh-keygen", "gpg", "sh"} - {program}:
        found = shutil.which(name)
        assert found
        (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    error = refused(place.source(remote))
    assert (error.problem.code, isinstance(error, Retry)) == ("SH245", True)
    assert f"{program} isn't installed" in error.problem.what


@pytest.mark.parametrize(
    "trust",
    [
        Trust(mode=Mode.HEAD),
        Trust(mode=Mode.EVERY, forge=Signers(ssh=Path("x"))),
        Trust(authors=Signers(ssh=Path("x"))),
        Trust(mode=Mode.HEAD, authors=Signers(ssh=Path("x")), since="abc"),
        Trust(mode=Mode.HEAD, authors=Signers(ssh=Path("x")), since="main"),
    ],
)
def test_a_trust_that_contradicts_itself(tmp_path: Path, trust: Trust) -> None:
    with pytest.raises(Rejected) as caught:
        GitSource("https://example.com/x.git", "main", "", tmp_path / "cache", trust=trust)
    assert caught.value.problem.code == "SH246"
    assert not os.listdir(tmp_path)
