"""Problems as SARIF 2.1.0, the form that code scanning reads. The same problems give the same bytes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote

import msgspec

from shunter.model.errors import Problem, Severity

SCHEMA: Final = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT: Final = "%SRCROOT%"


def sarif(
    problems: Sequence[Problem],
    titles: Mapping[str, str],
    *,
    version: str,
    ends: Mapping[Problem, int] | None = None,
    relative: Callable[[str], str] = str,
) -> bytes:
    """One run of `shunter` with a rule for each code that occurs and a result for each problem, in their order; indented, with a newline.

    `titles` says in a few words what each code means, `version` is Shunter's own. `ends` gives the column after the end of what a
    problem is about, as far as that is known; `relative` turns a problem's file into a path from the repository's root. A problem without
    a place is about its subject as a file. Columns count characters (code points).
    """
    codes = sorted({p.code for p in problems})
    rules = [_rule(code, titles.get(code, "a problem")) for code in codes]
    results = [_result(p, codes.index(p.code), ends or {}, relative) for p in problems]
    run = {
        "tool": {"driver": {"name": "shunter", "semanticVersion": version, "version": version, "rules": rules}},
        "automationDetails": {"id": "shunter/validate/"},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_ROOT: {"description": {"text": "the root of the repository"}}},
        "invocations": [{"executionSuccessful": True}],
        "results": results,
    }
    document = {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def _rule(code: str, title: str) -> dict[str, Any]:
    sentence = title[:1].upper() + title[1:]
    help_text = f"{sentence}. Each result says what to do about it; `shunter explain` describes every kind of policy and every key."
    return {
        "id": code,
        "shortDescription": {"text": sentence},
        "help": {"text": help_text, "markdown": help_text},
        "properties": {"tags": ["policy"]},
    }


def _result(problem: Problem, index: int, ends: Mapping[Problem, int], relative: Callable[[str], str]) -> dict[str, Any]:
    place = problem.place
    uri = quote(relative(place.file if place else problem.subject), safe="/")
    region: dict[str, Any] = {"startLine": place.line, "startColumn": place.column} if place else {"startLine": 1}
    if problem in ends:
        region["endColumn"] = ends[problem]
    location: dict[str, Any] = {"artifactLocation": {"uri": uri, "uriBaseId": _ROOT}, "region": region}
    if problem.excerpt and place is not None:
        location["contextRegion"] = {"startLine": place.line, "snippet": {"text": problem.excerpt}}
    return {
        "ruleId": problem.code,
        "ruleIndex": index,
        "level": "warning" if problem.severity is Severity.WARNING else "error",
        "message": {"text": f"{problem.what}. {problem.remedy}"},
        "locations": [{"physicalLocation": location}],
    }
