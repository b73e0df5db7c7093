"""Problems as JUnit XML, the form that CI systems show as tests: one test case a file. The same problems give the same bytes."""

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final
from xml.etree import ElementTree as ET  # only written here, never parsed

from shunter.model.errors import Problem, Severity

_UNFIT: Final = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(files: Iterable[str], problems: Sequence[Problem]) -> bytes:
    """A suite with a case for each file, which fails with all of the file's errors; warnings stand in its output. UTF-8, with a newline.

    Files that only problems name, or subjects of problems without a place, have cases of their own after the others.
    """
    of_file: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        of_file[problem.place.file if problem.place else problem.subject].append(problem)
    names = list(dict.fromkeys([*files, *of_file]))
    failed = sum(any(p.severity is Severity.ERROR for p in of_file[name]) for name in names)
    counts = {"tests": str(len(names)), "failures": str(failed), "errors": "0"}
    suites = ET.Element("testsuites", {"name": "shunter validate", **counts})
    suite = ET.SubElement(suites, "testsuite", {"name": "shunter validate", **counts, "skipped": "0"})
    for name in names:
        _case(suite, name, of_file[name])
    ET.indent(suites)
    written: bytes = ET.tostring(suites, encoding="utf-8", xml_declaration=True)
    return written + b"\n"


def _case(suite: ET.Element, name: str, problems: Sequence[Problem]) -> None:
    case = ET.SubElement(suite, "testcase", {"classname": "shunter.validate", "name": _fit(name), "file": _fit(name), "time": "0"})
    errors = [p for p in problems if p.severity is Severity.ERROR]
    warnings = [p for p in problems if p.severity is Severity.WARNING]
    if errors:
        more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
        failure = ET.SubElement(case, "failure", {"type": errors[0].code, "message": _fit(f"{errors[0].code} {errors[0].what}{more}")})
        failure.text = _fit("\n".join(str(p) for p in errors))
    if warnings:
        ET.SubElement(case, "system-out").text = _fit("\n".join(str(p) for p in warnings))


def _fit(text: str) -> str:
    """The text with what XML can't hold replaced."""
    return _UNFIT.sub("\N{REPLACEMENT CHARACTER}", text)
