"""Who calls this agent, by the one URI in the certificate: the engine, who may ask for all, or a reader, who may look and no more."""

from collections.abc import Iterable, Mapping
from typing import Final

from shunter.model.errors import Problem

from shunter_agent.tls import ENGINE, READER

_KNOWN: Final = (ENGINE, READER)


def caller(auth: Mapping[str, Iterable[bytes]]) -> str:
    """ENGINE or READER, where a connection's authentication context shows that and no other URI; empty: neither."""
    uris = [value for value in auth.get("x509_subject_alternative_name", ()) if b"://" in value]
    return next((known for known in _KNOWN if uris == [known.encode()]), "")


def refused(who: str, *, looks: bool) -> Problem | None:
    """Why it may not have what it calls for; None: it may. `looks`: the call changes nothing here, nor what this node knows of an engine.

    SH609: it is nobody that an agent answers; SH615: it is a reader, and the call isn't a look.
    """
    if who == ENGINE or (who == READER and looks):
        return None
    if who == READER:
        return Problem(
            code="SH615",
            what=f"the caller is {READER}, which may look at this node and no more",
            remedy=f"Call with the certificate of {ENGINE}; a reader's is for previews, such as `shunter plan`",
        )
    return Problem(
        code="SH609",
        what="the caller's certificate isn't the engine's",
        remedy=f"Call with a certificate whose only URI is {ENGINE}, of the fleet's own authority",
    )
