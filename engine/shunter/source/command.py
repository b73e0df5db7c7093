"""The git command on a bare clone of our own: no settings but those given here, and secrets where no listing of processes shows them."""

import base64
import contextlib
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from shunter.model.errors import Problem, Retry
from shunter.source.address import credentials, password, shown
from shunter.source.process import Ended, run

Setting = tuple[str, str]

_SETTINGS: Final[tuple[Setting, ...]] = (
    ("core.hooksPath", "/dev/null"),
    ("core.attributesFile", "/dev/null"),
    ("core.bigFileThreshold", "1m"),  # larger blobs are streamed, never held in memory
    ("fetch.fsckObjects", "true"),
    ("transfer.fsckObjects", "true"),
    ("http.followRedirects", "false"),  # a redirect would carry credentials to whoever it names
    ("credential.helper", ""),
    ("gc.autoDetach", "false"),  # housekeeping ends with its command
    ("protocol.version", "2"),
)
_KEPT: Final = ("PATH", "HOME", "SSH_AUTH_SOCK", "TMPDIR", "SSL_CERT_FILE")


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """Files that give access to the repository, each read anew at every fetch, so that replacing one is enough. None: not used.

    `token` holds `user:token`, or a token alone, for https; `ca` the certificates that https servers are checked by, instead of the
    system's. `ssh_key` and `known_hosts` are for ssh; without `known_hosts` the user's and the system's own are used. Host keys and
    certificates are always checked.
    """

    token: Path | None = None
    ca: Path | None = None
    ssh_key: Path | None = None
    known_hosts: Path | None = None


class Git:
    """Runs git for one repository, each command within `timeout_s` seconds. `url` was checked by `address.check_url`."""

    def __init__(self, url: str, cache: Path, timeout_s: float, access: Access) -> None:
        self.url, self.cache, self.timeout_s, self.access = url, cache, timeout_s, access

    def run(
        self,
        *arguments: str,
        cache: Path | None = None,
        given: bytes = b"",
        output_bytes: int = 2**20,
        remote: bool = False,
        standalone: bool = False,
        settings: Sequence[Setting] = (),
        environment: Mapping[str, str] | None = None,
    ) -> Ended:
        """`remote`: it talks to the repository, named `origin`. `standalone`: don't look at the clone at all, which may be what is broken.

        Raises Retry SH204 when a file that gives access can't be read.
        """
        place = Path("/dev/null") if standalone else (cache or self.cache)
        with _unlisted(self._secrets() if remote else "") as file:
            return run(
                ("git", f"--git-dir={place}", *arguments),
                env={**self._environment(settings, file), **(environment or {})},
                timeout_s=self.timeout_s,
                given=given,
                output_bytes=output_bytes,
                files=() if file is None else (file,),
            )

    def said(self, ended: Ended) -> str:
        """Git's own last words, with the URL and any secret blotted out."""
        lines = [line.strip() for line in ended.error.splitlines() if line.strip()]
        telling = [line for line in lines if line.startswith(("fatal:", "error:", "remote:")) or "denied" in line or "verification" in line]
        text = "; ".join((telling or lines)[:3]) or f"git ended with {ended.code}"
        for secret in filter(None, (self.url if self.url != shown(self.url) else "", password(self.url))):
            text = text.replace(secret, "***")
        return text

    def _environment(self, more: Sequence[Setting], file: int | None) -> dict[str, str]:
        settings = [*_SETTINGS, *more]
        environment = {
            **{name: os.environ[name] for name in _KEPT if name in os.environ},
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": "/dev/null" if file is None else f"/proc/self/fd/{file}",
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_ALLOW_PROTOCOL": "https:ssh:file",
            "GIT_NO_REPLACE_OBJECTS": "1",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_SSH_COMMAND": self._ssh(),
            "GIT_CONFIG_COUNT": str(len(settings)),
        }
        for number, (key, value) in enumerate(settings):
            environment[f"GIT_CONFIG_KEY_{number}"] = key
            environment[f"GIT_CONFIG_VALUE_{number}"] = value
        return environment

    def _secrets(self) -> str:
        """A settings file for what neither arguments nor environment may show. Helpers get the URL: its password goes beside."""
        embedded = credentials(self.url)
        url = shown(self.url) if embedded else self.url
        pair = self._token() if self.access.token is not None else embedded
        http = [("extraHeader", f"Authorization: Basic {base64.b64encode(pair.encode()).decode()}")] if pair else []
        if self.access.ca is not None:
            http.append(("sslCAInfo", str(self.access.ca)))
        text = f'[remote "origin"]\n\turl = {_quoted(url)}\n'
        if http:
            text += f"[http {_quoted(shown(url))}]\n" + "".join(f"\t{key} = {_quoted(value)}\n" for key, value in http)
        return text

    def _token(self) -> str:
        assert self.access.token is not None
        try:
            text = self.access.token.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            what = f"the token's file can't be read ({type(error).__name__})"
            remedy = f"Check {self.access.token}; the last good commit stays in force"
            raise Retry(Problem(code="SH204", what=what, remedy=remedy, subject=shown(self.url))) from error
        return text if ":" in text else f"x-access-token:{text}"

    def _ssh(self) -> str:
        words = ["ssh", "-oBatchMode=yes", "-oStrictHostKeyChecking=yes", f"-oConnectTimeout={max(1, int(self.timeout_s / 2))}"]
        if self.access.ssh_key is not None:
            words += ["-oIdentitiesOnly=yes", _option("IdentityFile", self.access.ssh_key)]
        if self.access.known_hosts is not None:
            words += [_option("UserKnownHostsFile", self.access.known_hosts), "-oGlobalKnownHostsFile=/dev/null"]
        return shlex.join(words)


def _option(name: str, path: Path) -> str:
    """An option of ssh with one file. Bare, ssh would take a space for the end of the name, and `%` for the start of a placeholder."""
    text = str(path).replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'-o{name}="{text}"'


def _quoted(text: str) -> str:
    """A value or a subsection's name in a settings file of git's."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


@contextlib.contextmanager
def _unlisted(text: str) -> Iterator[int | None]:
    """An open file with this text that has no name and is gone with its last reader; None for no text."""
    if not text:
        yield None
        return
    file = os.memfd_create("shunter-git")
    try:
        os.write(file, text.encode())
        yield file
    finally:
        os.close(file)
