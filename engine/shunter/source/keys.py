"""The public keys that policies may be signed with: taken from their files as they are now, into a folder of our own.

What is judged by is a copy, so that one judgement sees one state of the files; and GnuPG gets a home of its own with these keys and no
others, so that neither the user's keyring nor a key server has a say.
"""

import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from shunter.model.errors import Problem, Retry
from shunter.source.process import Ended, run

_BYTES: Final = 4 * 2**20
_FILES: Final = 1_000
_TIMEOUT_S: Final = 30.0
_KEY: Final = re.compile(r"(?:^|\s)(?:ssh|ecdsa|sk-ssh|sk-ecdsa)-[\w@.-]+\s+([A-Za-z0-9+/]{32,}={0,2})(?=\s|$)")
# keys come from these files alone, so all of them are trusted, and none is looked for elsewhere
_GPG_CONF: Final = "batch\nno-autostart\ntrust-model always\nno-auto-key-retrieve\nno-auto-check-trustdb\nweak-digest SHA1\n"
_PRIVATE_KEYS, _REFUSED = 9, 13
"""Places in gpg's IMPORT_RES: how many private keys were read, and how many keys not imported."""


class Signers(msgspec.Struct, frozen=True, kw_only=True):
    """Where the public keys of one class of signers are; both None: nobody is of that class.

    `ssh` is a file in the format of ssh-keygen's allowed_signers. `openpgp` is a file of public keys, or a folder of such files.
    """

    ssh: Path | None = None
    openpgp: Path | None = None

    def __bool__(self) -> bool:
        return self.ssh is not None or self.openpgp is not None


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """One class of signers as it was read. `allowed` is our copy of the SSH signers, `home` GnuPG's folder; None: no keys of that kind.

    `ids` are the keys themselves (SSH, base64) and the fingerprints of keys and subkeys (OpenPGP). `digest` changes when any of it does.
    """

    allowed: Path | None = None
    home: Path | None = None
    ids: frozenset[str] = frozenset()
    digest: str = ""


def take(signers: Signers, folder: Path) -> Keys:
    """Read the keys as they are now. `folder` is ours alone, and made when missing (0700).

    Raises Retry: SH244 when a file can't be read, isn't what it should be, or holds no key; SH245 when a program isn't installed.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    allowed, ssh_ids = _ssh(signers.ssh, folder) if signers.ssh else (None, frozenset[str]())
    home, openpgp_ids = _openpgp(signers.openpgp, folder) if signers.openpgp else (None, frozenset[str]())
    named = ":".join(path.name for path in (allowed, home) if path)
    return Keys(allowed=allowed, home=home, ids=ssh_ids | openpgp_ids, digest=named)


def prune(folder: Path, *kept: Keys) -> None:
    """Remove copies of what the keys' files were before. Those of `kept` stay."""
    used = {path.name for keys in kept for path in (keys.allowed, keys.home) if path}
    for path in folder.iterdir():
        if path.name in used:
            continue
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _ssh(path: Path, folder: Path) -> tuple[Path, frozenset[str]]:
    data = _read(path)
    ids = set()
    for number, line in enumerate(data.decode(errors="replace").splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _KEY.search(line)
        if found is None or not line[: found.start()].strip():
            raise _unusable(path, f"line {number} isn't `principals [options] key-type key`")
        ids.add(found.group(1))
    if not ids:
        raise _unusable(path, "it names no signer")
    _need("ssh-keygen", "openssh-client")
    copy = folder / f"signers-{_digest(data)}"
    if not copy.exists():
        fresh = folder / f"{copy.name}.new"
        fresh.write_bytes(data)
        fresh.rename(copy)
    return copy.absolute(), frozenset(ids)


def _openpgp(path: Path, folder: Path) -> tuple[Path, frozenset[str]]:
    files = [(file, _read(file)) for file in _key_files(path)]
    if not files:
        raise _unusable(path, "it holds no key file")
    _need("gpg", "gpg")
    home = (folder / f"gnupg-{_digest(*(data for _, data in files))}").absolute()
    if not home.exists():
        fresh = Path(tempfile.mkdtemp(prefix="gnupg-new-", dir=folder))
        try:
            (fresh / "gpg.conf").write_text(_GPG_CONF)
            for file, data in files:
                _import(file, data, fresh)
            fresh.rename(home)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    listed = _gpg(home, "--with-colons", "--list-keys")
    rows = [line.split(":") for line in listed.output.decode(errors="replace").splitlines()]
    return home, frozenset(row[9] for row in rows if row[0] == "fpr")


def _import(file: Path, data: bytes, home: Path) -> None:
    """Gpg's exit status is no guide: it also tells of an agent that isn't there, which public keys have no need of."""
    lines = [line.split() for line in _gpg(home, "--status-fd", "1", "--import", given=data).output.decode(errors="replace").splitlines()]
    counts = next(([int(word) for word in words[2:]] for words in lines if words[1:2] == ["IMPORT_RES"]), [0] * 15)
    if counts[_PRIVATE_KEYS] or b"PRIVATE KEY BLOCK" in data:
        raise _unusable(file, "it holds a private key, which doesn't belong here", "Export the public key alone (gpg --export --armor)")
    if counts[_REFUSED] or not any(words[1:2] == ["IMPORT_OK"] for words in lines):
        raise _unusable(file, "gpg finds no usable public key in it")


def _gpg(home: Path, *arguments: str, given: bytes = b"") -> Ended:
    command = ("gpg", "--homedir", str(home), *arguments)
    return run(
        command, env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}, timeout_s=_TIMEOUT_S, given=given, output_bytes=2**22
    )


def _key_files(path: Path) -> Iterator[Path]:
    """The file itself, or the files in the folder, but hidden ones, such as those that Kubernetes keeps beside a mounted secret."""
    try:
        found = sorted(p for p in path.iterdir() if p.is_file() and p.name[0] != ".") if path.is_dir() else [path]
    except OSError as error:
        raise _unusable(path, f"it can't be read ({error.strerror})") from error
    if len(found) > _FILES:
        raise _unusable(path, f"it holds more than {_FILES:,} files")
    yield from found


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(_BYTES + 1)
    except OSError as error:
        raise _unusable(path, f"it can't be read ({error.strerror})") from error
    if len(data) > _BYTES:
        raise _unusable(path, f"it has more than {_BYTES:,} bytes")
    return data


def _digest(*parts: bytes) -> str:
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()[:32]


def _need(program: str, package: str) -> None:
    if shutil.which(program) is None:
        what = f"{program} isn't installed, so no signature can be checked"
        raise Retry(Problem(code="SH245", what=what, remedy=f"Install it (Debian: {package}); the last good commit stays in force"))


def _unusable(path: Path, why: str, remedy: str = "Mend the file; no newer commit is taken until then") -> Retry:
    return Retry(Problem(code="SH244", what=f"the signers' keys can't be used: {why}", remedy=remedy, subject=str(path)))
