"""An API server and an etcd of our own on loopback, that tests may kill, stop, restart and compact. Started as envtest does."""

import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[2]
PLACES = (os.environ.get("KUBEBUILDER_ASSETS"), "/usr/local/kubebuilder/bin", str(ROOT / ".assets" / "kubernetes"))


def asset(name: str) -> Path | None:
    """A program: $TEST_ASSET_<NAME>, else in $KUBEBUILDER_ASSETS, its usual place, or where scripts/install-apiserver puts it."""
    named = os.environ.get("TEST_ASSET_" + name.upper().replace("-", "_").replace(".", "_"))
    if named:
        return Path(named)
    found = (Path(place) / name for place in PLACES if place)
    return next((path for path in found if os.access(path, os.X_OK)), None)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until(done: Any, within: float = 30.0, what: str = "") -> Any:
    """The first truthy result, asked for often. Fails after `within` seconds."""
    end = time.monotonic() + within
    while True:
        result = done()
        if result:
            return result
        assert time.monotonic() < end, f"not within {within} s: {what or done}"
        time.sleep(0.05)


class ControlPlane:
    """`server` is the path of a kube-apiserver. Everything is below `folder`."""

    def __init__(self, folder: Path, server: Path) -> None:
        self.folder, self._server = folder, server
        self.port, self._etcd_port, self._peer_port = free_port(), free_port(), free_port()
        self.url = f"https://127.0.0.1:{self.port}"
        self.etcd: subprocess.Popen[bytes] | None = None
        self.api: subprocess.Popen[bytes] | None = None
        self.ca = folder / "ca.crt"
        self._kept: http.client.HTTPSConnection | None = None
        self._one = threading.Lock()
        """Who plays nodes or pods asks from a thread of its own, and there is one connection."""

    def start(self) -> None:
        self._certificates()
        self.start_etcd()
        self.start_api()
        self.wait_ready()

    def stop(self) -> None:
        if self._kept is not None:
            self._kept.close()
        for process in (self.api, self.etcd):
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()

    # -- what tests do to it

    def start_etcd(self, *, anew: bool = False) -> None:
        """`anew`: with nothing in it."""
        if anew:
            shutil.rmtree(self.folder / "etcd", ignore_errors=True)
        client, peer = f"http://127.0.0.1:{self._etcd_port}", f"http://127.0.0.1:{self._peer_port}"
        self.etcd = self._run(
            asset("etcd"), "--data-dir", "etcd", "--unsafe-no-fsync", "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
            "--experimental-watch-progress-notify-interval", "1s",  # kubeadm's is 5s: bookmarks come of it
        )  # fmt: skip

    def start_api(self) -> None:
        self.api = self._run(
            self._server, "--etcd-servers", f"http://127.0.0.1:{self._etcd_port}", "--secure-port", str(self.port),
            "--bind-address", "127.0.0.1", "--cert-dir", ".", "--tls-cert-file", "server.crt", "--tls-private-key-file", "server.key",
            "--client-ca-file", "ca.crt", "--service-account-issuer", self.url, "--service-account-key-file", "sa.key",
            "--service-account-signing-key-file", "sa.key", "--service-cluster-ip-range", "10.0.0.0/24",
            "--authorization-mode", "RBAC", "--allow-privileged=true", "--disable-admission-plugins", "ServiceAccount",
        )  # fmt: skip

    def kill_api(self) -> None:
        assert self.api is not None
        self.api.kill()
        self.api.wait()

    def kill_etcd(self) -> None:
        assert self.etcd is not None
        self.etcd.kill()
        self.etcd.wait()

    def freeze_api(self) -> None:
        """It stands still: connections stay open, and nothing answers."""
        assert self.api is not None
        self.api.send_signal(signal.SIGSTOP)

    def thaw_api(self) -> None:
        assert self.api is not None
        self.api.send_signal(signal.SIGCONT)

    def restart_api(self) -> None:
        self.kill_api()
        self.start_api()
        self.wait_ready()

    def compact(self) -> None:
        """Have etcd forget all versions but the newest."""
        got = self._etcd("range", {"key": b64encode(b"/").decode(), "limit": 1})
        self._etcd("compaction", {"revision": got["header"]["revision"], "physical": True})

    def wait_ready(self, within: float = 60.0) -> None:
        def ready() -> bool:
            for process in (self.api, self.etcd):
                assert process is not None
                assert process.poll() is None, f"it ended by itself; its log is in {self.folder}"
            try:
                with urllib.request.urlopen(f"{self.url}/readyz", context=self.tls(), timeout=2) as answer:
                    return bool(answer.read() == b"ok")
            except OSError:
                return False

        until(ready, within, "/readyz")

    def tls(self) -> ssl.SSLContext:
        found = ssl.create_default_context(cafile=self.ca)
        found.load_cert_chain(self.folder / "admin.crt", self.folder / "admin.key")
        return found

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> tuple[int, Any]:
        """One request as the administrator: its status, and the answer."""
        data = None if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        with self._one:
            try:
                return self._request(method, path, data, kind)
            except (OSError, http.client.HTTPException):  # the connection that was kept is one to a server that is gone
                if self._kept is not None:
                    self._kept.close()
                self._kept = None
                return self._request(method, path, data, kind)

    def _request(self, method: str, path: str, data: bytes | None, kind: str) -> tuple[int, Any]:
        if self._kept is None:
            self._kept = http.client.HTTPSConnection("127.0.0.1", self.port, context=self.tls(), timeout=15)
        self._kept.request(method, path, data, {"Content-Type": kind, "Accept": "application/json"})
        answer = self._kept.getresponse()
        text = answer.read()
        try:
            return answer.status, msgspec.json.decode(text)
        except msgspec.DecodeError:
            return answer.status, text.decode(errors="replace")

    def must(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        status, answer = self.ask(method, path, body, kind)
        assert status < 300, (method, path, status, answer)
        return answer

    # -- inside

    def _etcd(self, call: str, body: Any) -> Any:
        request = urllib.request.Request(f"http://127.0.0.1:{self._etcd_port}/v3/kv/{call}", msgspec.json.encode(body))
        with urllib.request.urlopen(request, timeout=5) as answer:
            return msgspec.json.decode(answer.read())

    def _run(self, program: Path | None, *arguments: str) -> "subprocess.Popen[bytes]":
        assert program is not None
        with (self.folder / f"{program.name}.log").open("ab") as log:
            return subprocess.Popen([program, *arguments], cwd=self.folder, stdout=log, stderr=log, start_new_session=True)

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self.folder, check=True, capture_output=True)

    def _certificates(self) -> None:
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        self._openssl("req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=test-ca", "-days", "7")
        for name, subject, extension in (
            ("admin", "/O=system:masters/CN=admin", "extendedKeyUsage=clientAuth"),
            ("server", "/CN=127.0.0.1", "subjectAltName=IP:127.0.0.1,DNS:localhost"),
        ):
            self._openssl("req", *curve, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", subject)
            (self.folder / f"{name}.ext").write_text(extension)
            self._openssl(
                "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-days", "7",
                "-out", f"{name}.crt", "-extfile", f"{name}.ext",
            )  # fmt: skip
        self._openssl("genrsa", "-out", "sa.key", "2048")
