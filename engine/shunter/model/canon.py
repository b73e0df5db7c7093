"""Canonical bytes and digests: the same value gives the same bytes in every process.

JSON with sorted keys, UTF-8, no spaces; floats that aren't finite can't be encoded at all, since JSON has no word for them and
msgspec would silently write null.
"""

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from shunter.model.ids import Digest
from shunter.model.units import Bandwidth, Bytes, Duration, Rate, Share

T = TypeVar("T")

_NOT_FINITE: Final = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]", re.DOTALL)
"""How a double with the highest exponent begins in MessagePack: every infinity and NaN, and now and then something else."""


class NotCanonical(ValueError):
    """A value holds something that has no canonical form, such as NaN."""


def _enc_hook(value: object) -> object:
    if isinstance(value, Duration | Share | Bandwidth | Rate):
        return float(value)
    if isinstance(value, Bytes):
        return int(value)
    if isinstance(value, Sequence):
        return tuple(value)
    if isinstance(value, Mapping):
        return dict(value)
    raise NotImplementedError(f"{type(value).__name__} has no canonical form")


_PACK: Final = msgspec.msgpack.Encoder(enc_hook=_enc_hook)
_WRITE: Final = msgspec.json.Encoder(enc_hook=_enc_hook, order="sorted")


def _dec_hook(kind: type[Any], value: Any) -> Any:  # noqa: ANN401  (msgspec's own signature)
    if kind in (Duration, Share, Bytes, Bandwidth, Rate):
        return kind(value)
    if kind is object:  # a record's body: JSON as it is
        return value
    raise NotImplementedError(f"{kind.__name__} can't be decoded")


def _refuse_non_finite(value: object) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise NotCanonical(f"{value} has no canonical form")
    if isinstance(value, dict):
        for part in value.values():
            _refuse_non_finite(part)
    elif isinstance(value, list | tuple):
        for part in value:
            _refuse_non_finite(part)


def encode(value: object) -> bytes:
    """The canonical JSON bytes of a model value. Raises NotCanonical for NaN and infinities."""
    return bytes(_written(value))


def _written(value: object) -> bytearray:
    # How many bytes MessagePack needs tells how much room JSON does: half of the time for a large value would go into making more of it.
    written = bytearray(_checked(value) * 3 // 2)
    _WRITE.encode_into(value, written)
    return written


def _checked(value: object) -> int:
    """The size in MessagePack, which keeps what JSON would write as null, and whose bytes are searched some twenty times faster than the
    values are walked. 0 where it can't hold the value. Raises NotCanonical.
    """
    try:
        packed = _PACK.encode(value)
    except OverflowError:  # a whole number of more than 64 bits, which JSON can hold
        packed = None
    if packed is None or _NOT_FINITE.search(packed):
        _refuse_non_finite(msgspec.to_builtins(value, enc_hook=_enc_hook))
    return len(packed) if packed else 0


def plain(value: object) -> Any:  # noqa: ANN401  (JSON has no narrower type)
    """A model value as JSON's own types, keys sorted. A float that isn't finite becomes `{"notFinite": "nan"}` (or `inf`, `-inf`), so that
    a reader can tell it from a missing one and no JSON reader chokes on it.
    """
    return _tag_non_finite(msgspec.to_builtins(value, enc_hook=_enc_hook, order="deterministic"))


def _tag_non_finite(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return {"notFinite": str(value)}
    if isinstance(value, dict):
        return {key: _tag_non_finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_tag_non_finite(part) for part in value]
    return value


def decode(data: bytes | str, kind: type[T]) -> T:
    """Read what `encode` wrote. Raises msgspec.ValidationError or msgspec.DecodeError, also for what is nested too deeply to be that."""
    try:
        return msgspec.json.decode(data, type=kind, dec_hook=_dec_hook)
    except RecursionError as error:
        raise msgspec.DecodeError("JSON is nested too deeply") from error


def digest(value: object, *, doubtful: object = None) -> Digest:
    """`sha256:<hex>` of the canonical bytes. Raises NotCanonical for NaN and infinities; `doubtful` are the parts in which there can be
    any, where the others are finite by construction (None: all).
    """
    if doubtful is None:
        return Digest("sha256:" + hashlib.sha256(_written(value)).hexdigest())
    _checked(doubtful)
    return Digest("sha256:" + hashlib.sha256(_WRITE.encode(value)).hexdigest())
