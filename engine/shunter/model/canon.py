"""Canonical bytes and digests: the same value gives the same bytes in every process.

JSON with sorted keys, UTF-8, no spaces; floats that aren't finite can't be encoded at all, since JSON has no word for them and
msgspec would silently write null.
"""

import hashlib
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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


_AT_ONCE: Final = 250
"""Items of an array or object that are written at once where it is written in pieces."""

_WRITE_IN_ORDER: Final = msgspec.json.Encoder(enc_hook=_enc_hook, order="deterministic")
"""For `InOrder` structs: dictionaries are sorted, structs needn't be."""
_PACK: Final = msgspec.msgpack.Encoder(enc_hook=_enc_hook)
_WRITE: Final = msgspec.json.Encoder(enc_hook=_enc_hook, order="sorted")


class InOrder(msgspec.StructMeta):
    """The metaclass of structs whose fields lie in the order of their names, however they are written down: their canonical bytes can be
    written without sorting them, if all structs in them are of this kind too. Only for structs without a tag, which would come first.
    """

    def __new__(mcs, name: str, bases: tuple[type, ...], namespace: dict[str, Any], /, **options: Any) -> "InOrder":  # noqa: ANN401
        """Arguments as `msgspec.StructMeta` has them."""
        namespace["__annotations__"] = dict(sorted(namespace.get("__annotations__", {}).items()))
        return super().__new__(mcs, name, bases, namespace, **options)


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
    """A model value as JSON's own types, keys of mappings sorted. A float that isn't finite becomes `{"notFinite": "nan"}` (or `inf`,
    `-inf`), so that a reader can tell it from a missing one and no JSON reader chokes on it.
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


def pieces(value: object) -> Iterator[bytes | memoryview]:
    """The canonical bytes of a value, a little of its long arrays and objects at a time: no call is long, and no more memory is touched
    than fits a cache. What isn't finite isn't looked for.
    """
    if isinstance(value, msgspec.Struct) and value.__struct_config__.tag is None:
        yield from _members(value)
    elif isinstance(value, tuple | list) and len(value) > _AT_ONCE:
        encoder = _WRITE_IN_ORDER if isinstance(type(value[0]), InOrder) else _WRITE
        yield from _joined(b"[", (value[n : n + _AT_ONCE] for n in range(0, len(value), _AT_ONCE)), b"]", encoder)
    elif isinstance(value, dict) and len(value) > _AT_ONCE:
        names = sorted(value)
        parts = ({name: value[name] for name in names[n : n + _AT_ONCE]} for n in range(0, len(names), _AT_ONCE))
        yield from _joined(b"{", parts, b"}", _WRITE)
    else:
        yield _WRITE.encode(value)


def _members(value: msgspec.Struct) -> Iterator[bytes | memoryview]:
    names = sorted(zip(value.__struct_encode_fields__, value.__struct_fields__, strict=True))
    for n, (written, field) in enumerate(names):
        yield (b"," if n else b"{") + _WRITE.encode(written) + b":"
        yield from pieces(getattr(value, field))
    yield b"}" if names else b"{}"


def _joined(begin: bytes, parts: Iterable[object], end: bytes, encoder: msgspec.json.Encoder) -> Iterator[bytes | memoryview]:
    for n, part in enumerate(parts):
        yield b"," if n else begin
        yield memoryview(encoder.encode(part))[1:-1]
    yield end


def compressed(value: object, breathe: Callable[[], None] = lambda: None) -> bytes:
    """The canonical bytes as `zlib` packs them with the least effort: what has the same words again and again, as fleets do, becomes a
    tenth. `breathe` is called between the pieces. What isn't finite isn't looked for.
    """
    packer, made = zlib.compressobj(1), list[bytes]()
    for piece in pieces(value):
        made.append(packer.compress(piece))
        breathe()
    return b"".join((*made, packer.flush()))


def check(value: object) -> None:
    """Raises NotCanonical if there is a NaN or an infinity in it."""
    _checked(value)


def digest(value: object, *, doubtful: object = None) -> Digest:
    """`sha256:<hex>` of the canonical bytes. Raises NotCanonical for NaN and infinities; `doubtful` are the parts in which there can be
    any, where the others are finite by construction (None: all).
    """
    _checked(value if doubtful is None else doubtful)
    hashed = hashlib.sha256()
    for piece in pieces(value):
        hashed.update(piece)
    return Digest("sha256:" + hashed.hexdigest())
