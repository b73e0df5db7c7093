"""How the API server is reached and who we are there: the pod's own service account, or a kubeconfig."""

import base64
import binascii
import os
import ssl
from pathlib import Path
from typing import Any, Final, TypeAlias

import msgspec

from shunter.model.errors import Problem, Stalled

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
Pem: TypeAlias = Path | str
"""A file with PEM, or the PEM itself."""


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """A server and an identity. `token` is a file, read anew at every request as it is replaced from time to time, or the token itself.

    `namespace` is the one that is meant where none is named. None elsewhere: not used.
    """

    server: str
    namespace: str = "default"
    ca: Pem | None = None
    cert: Pem | None = None
    key: Pem | None = None
    token: Path | str | None = None


def _stalled(what: str, remedy: str, subject: str = "") -> Stalled:
    return Stalled(Problem(code="SH250", what=what, remedy=remedy, subject=subject))


def in_cluster(account: Path = ACCOUNT) -> Access:
    """The access that every pod is given. Raises Stalled SH250 outside one, or where the service account isn't mounted."""
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST", ""), os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise _stalled("this process doesn't run in a pod", "Name a kubeconfig to reach a cluster from outside", "KUBERNETES_SERVICE_HOST")
    try:
        namespace = (account / "namespace").read_text().strip()
    except OSError as error:
        raise _stalled(
            f"the pod's service account can't be read: {error.strerror}", "Set automountServiceAccountToken: true in the pod", str(account)
        ) from error
    shown = f"[{host}]" if ":" in host else host
    return Access(server=f"https://{shown}:{port}", namespace=namespace, ca=account / "ca.crt", token=account / "token")


def from_kubeconfig(path: Path, context: str | None = None) -> Access:
    """The access that a kubeconfig describes; `context` None: its current one.

    Raises Stalled SH250 when it can't be read, names what isn't there, or needs a program to log in (`exec`, `auth-provider`).
    """
    import yaml

    try:
        config = yaml.safe_load(path.read_text())
        wanted = context or config["current-context"]
        chosen = _named(config["contexts"], wanted)["context"]
        cluster = _named(config["clusters"], chosen["cluster"])["cluster"]
        user = _named(config["users"], chosen["user"])["user"] or {}
        for program in ("exec", "auth-provider"):
            if program in user:
                remedy = "Use a service account's token, or client certificates"
                raise _stalled(f"user {chosen['user']} logs in with a program ({program}), which isn't started", remedy, str(path))
        return Access(
            server=str(cluster["server"]).rstrip("/"),
            namespace=chosen.get("namespace", "default"),
            ca=_pem(path, cluster, "certificate-authority"),
            cert=_pem(path, user, "client-certificate"),
            key=_pem(path, user, "client-key"),
            token=path.parent / user["tokenFile"] if "tokenFile" in user else user.get("token"),
        )
    except (OSError, KeyError, TypeError, AttributeError, ValueError, yaml.YAMLError, binascii.Error) as error:
        why = f"{error} isn't in it" if isinstance(error, KeyError) else str(error)
        raise _stalled(f"the kubeconfig can't be used: {why}", "Check it with kubectl", str(path)) from error


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    found = next((entry for entry in entries if entry["name"] == name), None)
    if found is None:
        raise KeyError(name)
    return found


def _pem(path: Path, section: dict[str, Any], key: str) -> Pem | None:
    if f"{key}-data" in section:
        return base64.b64decode(section[f"{key}-data"], validate=True).decode()
    return path.parent / section[key] if key in section else None


def tls(access: Access) -> ssl.SSLContext:
    """What connections are made with. Raises Stalled SH250 for certificates that can't be read."""
    try:
        if isinstance(access.ca, Path):
            found = ssl.create_default_context(cafile=access.ca)
        else:
            found = ssl.create_default_context(cadata=access.ca)
        if access.cert is not None and access.key is not None:
            with _File(access.cert) as cert, _File(access.key) as key:
                found.load_cert_chain(cert, key)
    except (OSError, ValueError) as error:  # an SSLError is an OSError
        remedy = "Check the certificate authority, the client's certificate and its key"
        raise _stalled(f"TLS can't be set up: {error}", remedy, access.server) from error
    return found


class _File:
    """A PEM as a file: its own, or one in memory, as a client's certificate can be loaded from files only."""

    def __init__(self, pem: Pem) -> None:
        self._pem = pem
        self._handle: int | None = None

    def __enter__(self) -> str:
        if isinstance(self._pem, Path):
            return str(self._pem)
        self._handle = os.memfd_create("pem")
        os.write(self._handle, self._pem.encode())
        return f"/proc/self/fd/{self._handle}"

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            os.close(self._handle)
