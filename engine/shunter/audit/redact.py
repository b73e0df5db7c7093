"""What a record never holds: credentials, labels that aren't to be kept, and what people said to a model.

It is taken out before a record is hashed, so that nothing has to be taken out of a chain later. What is masked is masked whole: not even
its length or a hash remains, since a weak password could be guessed from those.

Names of keys are judged by their words (`apiKey`, `API_KEY` and `api-key` are one), values by the shapes that issuers give their tokens.
A secret that looks like an ordinary word, under an ordinary name, isn't found: labels are best listed (`[audit] labels`).
"""

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import pairwise
from typing import Final

import msgspec

from shunter.model.canon import encode
from shunter.model.record import Record

MASKED: Final = "[masked]"
LEFT_OUT: Final = "[left out]"
_LONGEST: Final = 8192
"""Characters of one text: an expression has at most half as many. What is longer is nothing that a decision is made of."""
_SHAPES: Final = (
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)",
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    r"\bgh[oprsu]_[0-9A-Za-z]{20,}",
    r"\bgithub_pat_[0-9A-Za-z_]{20,}",
    r"\bglpat-[0-9A-Za-z_.-]{16,}",
    r"\bxox[abeoprs]-[0-9A-Za-z-]{10,}",
    r"\bsk-[0-9A-Za-z_-]{20,}",
    r"\b[rs]k_(?:live|test)_[0-9A-Za-z]{16,}",
    r"\bhf_[0-9A-Za-z]{20,}",
    r"\bnvapi-[0-9A-Za-z_-]{20,}",
    r"\bnpm_[0-9A-Za-z]{30,}",
    r"\bpypi-[0-9A-Za-z_-]{30,}",
    r"\bdckr_pat_[0-9A-Za-z_-]{20,}",
    r"\bdop_v1_[0-9a-f]{32,}",
    r"\bhvs\.[0-9A-Za-z_-]{20,}",
    r"\bSG\.[0-9A-Za-z_-]{16,}\.[0-9A-Za-z_-]{16,}",
    r"\bAIza[0-9A-Za-z_-]{30,}",
    r"\bya29\.[0-9A-Za-z_-]{20,}",
    r"\beyJ[0-9A-Za-z_-]{8,}\.eyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]*",
)
_TOKEN: Final = re.compile("|".join(_SHAPES), re.DOTALL)
_IN_TEXT: Final = re.compile(
    r"(?P<before>\b(?:bearer|basic)\s+)(?P<a>(?=\S*[0-9=]|\S{24})[0-9A-Za-z+/_.~-]{12,}=*)"
    r"|(?P<url>\b[a-z][a-z0-9+.-]*://[^\s/?#@:]*:)(?P<b>[^\s/?#@]+)(?=@)"
    r"|(?P<name>\b[\w-]*(?:password|passwd|passphrase|secret|token|api[_-]?key|access[_-]?key)[\"']?\s*[=:]\s*[\"']?)(?P<c>[^\s\"'&,;{}]{4,})",
    re.IGNORECASE,
)
_HINTS: Final = tuple(
    b"passw passphrase -----begin secret credential authorization cookie apikey api_key api-key accesskey access_key access-key privatekey "
    b"private_key private-key signingkey signing_key signing-key token bearer basic :// prompt completion labels akia asia gho_ ghp_ ghr_ "
    b"ghs_ ghu_ github_pat glpat- xox sk- sk_ rk_ hf_ nvapi- npm_ pypi- dckr_pat dop_v1 hvs. sg. aiza ya29. eyj".split()
)
"""One of these is in the lower-cased bytes of whatever there is something to take out of. Most records have none, and asking for each is
thirty times faster than one expression for all.
"""
_WORD: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_SECRET_WORDS: Final = frozenset(
    {"password", "passwd", "passphrase", "secret", "secrets", "credential", "credentials", "authorization", "cookie", "token", "apikey"}
)
_SECRET_PAIRS: Final = frozenset({("api", "key"), ("access", "key"), ("private", "key"), ("signing", "key"), ("secret", "key")})
_SPOKEN: Final = frozenset({"prompt", "prompts", "completion", "completions"})
_SHORT: Final = 200
_LABELS: Final = "labels"
_LABEL: Final = re.compile(r"\.labels(?:\[\"(?P<key>.*)\"\])?$", re.DOTALL)
"""How an input is named that is a label's value, `node.labels["tier"]`, or all labels."""


class Redaction(msgspec.Struct, frozen=True, kw_only=True):
    """How records are cleaned. `labels` are the names of labels whose values are kept; None: of all, unless they look like credentials."""

    labels: frozenset[str] | None = None

    def clean(self, record: Record) -> Record:
        """The record as it may be kept: itself, if there is nothing to take out. Its commit, digests and numbers stay as they are."""
        return self.encoded(record)[0]

    def encoded(self, record: Record) -> tuple[Record, bytes]:
        """The same, with its canonical bytes: finding out whether there is anything takes them anyway."""
        data = encode(record)
        lowered = data.lower()
        if len(data) < _LONGEST and not any(hint in lowered for hint in _HINTS):
            return record, data
        clean = msgspec.structs.replace(
            record,
            subject=_text(record.subject),
            what=_text(record.what),
            operation=None if record.operation is None else _text(record.operation),
            body=self._mapping(record.body),
        )
        return clean, encode(clean)

    def plain(self, value: object) -> object:
        """JSON's own types, cleaned."""
        if isinstance(value, str):
            return _text(value)
        if isinstance(value, Mapping):
            return self._mapping(value)
        if isinstance(value, list | tuple):
            return [self.plain(part) for part in value]
        return value

    def labelled(self, labels: Mapping[str, str]) -> dict[str, str]:
        """Labels, cleaned."""
        return {_text(name): str(self._label(name, value)) for name, value in labels.items()}

    def keyed(self, strings: Mapping[str, str]) -> dict[str, str]:
        """Texts under names that aren't labels, cleaned."""
        return {_text(name): str(self._entry(name, value)) for name, value in strings.items()}

    def _mapping(self, value: Mapping[str, object]) -> dict[str, object]:
        cleaned = {_name(key): self._entry(key, part) for key, part in value.items()}
        found, given = _LABEL.search(str(cleaned.get("name"))), value.get("value")
        if found is not None and isinstance(given, str):  # an input that is a label's value, or all of them
            cleaned["value"] = self._label(found["key"] or "", given)
        if isinstance(inputs := value.get("inputs"), list | tuple) and isinstance(detail := value.get("detail"), str):
            cleaned["detail"] = _text(self._without(detail, inputs))
        return cleaned

    def _without(self, detail: str, inputs: Iterable[object]) -> str:
        """The words of evidence without the labels' values that its inputs are kept without."""
        for one in inputs:
            name, given = (one.get("name"), one.get("value")) if isinstance(one, Mapping) else (None, None)
            if isinstance(given, str) and given and (found := _LABEL.search(str(name))) is not None:
                detail = detail.replace(f"{name} = {given}", f"{name} = {self._label(found['key'] or '', given)}")
        return detail

    def _entry(self, key: str, value: object) -> object:
        if isinstance(value, str) and key != "name":
            if _is_secret(key):
                return MASKED
            if _is_spoken(key):
                return LEFT_OUT
        if key == _LABELS and isinstance(value, Mapping):
            return {_text(name): self._label(name, part) for name, part in value.items()}
        return self.plain(value)

    def _label(self, name: str, value: object) -> object:
        if self.labels is not None and name not in self.labels:
            return LEFT_OUT
        return self._entry(name, value)


@lru_cache(maxsize=4096)
def _is_secret(key: str) -> bool:
    """By its words, so that `kvTokens` isn't a `token`."""
    words = [word.lower() for word in _WORD.findall(key)]
    return not _SECRET_WORDS.isdisjoint(words) or any(pair in _SECRET_PAIRS for pair in pairwise(words))


@lru_cache(maxsize=4096)
def _is_spoken(key: str) -> bool:
    return not _SPOKEN.isdisjoint(word.lower() for word in _WORD.findall(key))


def _text(text: str) -> str:
    return _name(text) if len(text) <= _SHORT else _searched(text)


def _searched(text: str) -> str:
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]} {LEFT_OUT}"
    return _IN_TEXT.sub(_masked, _TOKEN.sub(MASKED, text))


_name = lru_cache(maxsize=16384)(_searched)
"""Keys, and what is as short: the operations of one plan, and of the next, are told in the same words."""


def _masked(found: re.Match[str]) -> str:
    return f"{found['before'] or found['url'] or found['name']}{MASKED}"
