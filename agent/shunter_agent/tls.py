"""Mutual TLS 1.3 between agents: who is at the other end is the URI in its certificate, `spiffe://shunter/agent/<node>`."""

import ssl
from pathlib import Path
from typing import Final

import msgspec
from shunter.model.errors import Problem, Rejected, Stalled

AGENT: Final = "spiffe://shunter/agent/"
ENGINE: Final = "spiffe://shunter/engine"
READER: Final = "spiffe://shunter/reader"
"""Whoever previews: it may look at nodes, and have nothing done."""


class TlsFiles(msgspec.Struct, frozen=True, kw_only=True):
    """PEM files: the certificate authority that both sides trust, this side's certificate (with what it needs above it), and its key."""

    ca: Path
    cert: Path
    key: Path


def _context(files: TlsFiles, purpose: int) -> ssl.SSLContext:
    context = ssl.SSLContext(purpose)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # identities are URIs, checked by `identity`; addresses change and prove nothing
    context.verify_mode = ssl.CERT_REQUIRED
    try:
        context.load_verify_locations(files.ca)
        context.load_cert_chain(files.cert, files.key)
    except (OSError, ssl.SSLError) as error:
        raise Stalled(unreadable(f"{files.ca}, {files.cert}, {files.key}", str(error))) from error
    return context


def unreadable(files: str, why: str) -> Problem:
    """SH810, of the files that are named."""
    return Problem(
        code="SH810",
        what=f"the TLS files can't be read: {why}",
        remedy="Check that the CA, certificate and key exist, belong together and are readable by the agent",
        subject=files,
    )


def server_context(files: TlsFiles) -> ssl.SSLContext:
    """For a listener: every client must show a certificate of the same CA. Raises Stalled SH810."""
    context = _context(files, ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0  # nobody resumes, and what comes back before the end then is a refusal
    return context


def client_context(files: TlsFiles) -> ssl.SSLContext:
    """For connecting; check the server with `require` right after the handshake. Raises Stalled SH810."""
    return _context(files, ssl.PROTOCOL_TLS_CLIENT)


def identity(link: ssl.SSLSocket | ssl.SSLObject) -> str:
    """The one URI in the peer's certificate; empty when it has none, or more than one, which would be two identities."""
    certificate = link.getpeercert() or {}
    names = certificate.get("subjectAltName", ())
    found = [str(name[1]) for name in names if name[0] == "URI"]
    return found[0] if len(found) == 1 else ""


def agent_of(uri: str) -> str | None:
    """The node whose agent a URI names. None when it names no agent."""
    node = uri.removeprefix(AGENT)
    return node if uri.startswith(AGENT) and node and "/" not in node else None


def require_agent(link: ssl.SSLSocket | ssl.SSLObject, node: str | None = None) -> str:
    """The node at the other end: an agent's, and with `node` that one's. Raises Rejected SH807."""
    uri = identity(link)
    found = agent_of(uri)
    if found is None or node not in (None, found):
        wanted = f"the agent of {node}" if node else "an agent"
        raise Rejected(
            Problem(
                code="SH807",
                what=f"the other end is {uri or 'nobody in particular'}, not {wanted}",
                remedy="Check the address, and the certificate of the node there",
                subject=node or "",
            )
        )
    return found
