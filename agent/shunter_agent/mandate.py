"""Whether a standing order is the engine's: it was signed by a key that the engine's own certificate vouches for, and not changed since."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from shunter.model.canon import decode
from shunter.model.errors import Rejected, Stalled
from shunter.model.standing import StandingOrder
from shunter.wire import agent_pb2 as pb

from shunter_agent.images.signing import led_to, verified
from shunter_agent.refusals import rejected
from shunter_agent.tls import ENGINE, unreadable

ENDORSED: Final = b"shunter standing key\n"
SIGNED: Final = b"shunter standing order\n"
"""Before what is signed: a signature by the same key for another purpose is none here."""


def check(message: pb.StandOrder, ca: Path, node: str, now: float) -> StandingOrder:
    """The order, if the engine gave it to this node, and its certificate is valid at `now` (seconds since the epoch).

    Raises Rejected SH612, Stalled SH810 when the authority's certificate can't be read.
    """
    try:
        order = decode(message.order, StandingOrder)
        chain = [x509.load_der_x509_certificate(data) for data in message.certificates]
        key = Ed25519PublicKey.from_public_bytes(message.key)
    except (msgspec.MsgspecError, ValueError) as error:
        raise _refused(f"it can't be read: {error}", node) from error
    try:
        roots = x509.load_pem_x509_certificates(ca.read_bytes())
    except (OSError, ValueError) as error:
        raise Stalled(unreadable(str(ca), str(error))) from error
    if not chain or _uris(chain[0]) != [ENGINE] or not led_to(chain, roots, datetime.fromtimestamp(now, UTC)):
        raise _refused("the authority here doesn't vouch for its signer as the engine", node)
    if not verified(chain[0], message.endorsement, ENDORSED + f"{order.epoch}\n".encode() + message.key):
        raise _refused(f"the engine doesn't vouch for its key at epoch {order.epoch}", node)
    try:
        key.verify(message.signature, SIGNED + message.order)
    except InvalidSignature as error:
        raise _refused("it isn't what was signed", node) from error
    if order.node != node:
        raise _refused(f"it is for {order.node}, and this is {node}", node)
    return order


def _uris(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return []
    return names.get_values_for_type(x509.UniformResourceIdentifier)


def _refused(what: str, node: str) -> Rejected:
    return rejected(
        "SH612",
        f"the standing order isn't taken: {what}",
        "Check that engine and agents have their certificates from one authority; the engine sends a new order by itself",
        node,
    )
