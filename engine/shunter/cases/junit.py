"""A report in JUnit's XML, as continuous integration reads it: one suite for each file, one case for each test."""

import re
from collections.abc import Sequence
from typing import Final
from xml.etree import ElementTree as ET

from shunter.cases.compare import Failure
from shunter.cases.run import FileResult, TestResult
from shunter.model.units import Duration

_NO_XML: Final = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def junit(files: Sequence[FileResult]) -> str:
    """The report, with a newline at its end. What kept tests from being run is an error of a case that has the file's name."""
    root = ET.Element("testsuites", name="shunter test")
    for file in files:
        failures = sum(not r.passed for r in file.results)
        errors = 1 if file.problems else 0
        numbers = {"tests": len(file.results) + errors, "failures": failures, "errors": errors}
        suite = ET.SubElement(root, "testsuite", attrib={"name": file.path, **{key: str(value) for key, value in numbers.items()}})
        for result in file.results:
            _case(suite, file, result)
        if file.problems:
            case = ET.SubElement(suite, "testcase", classname=file.path, name=file.path.rpartition("/")[2])
            error = ET.SubElement(case, "error", message=_clean(file.problems[0].what), type=file.problems[0].code)
            error.text = _clean("\n".join(str(problem) for problem in file.problems))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ET.Element, file: FileResult, result: TestResult) -> None:
    where = {"classname": file.path, "file": file.path, "line": str(result.place.line)}
    case = ET.SubElement(suite, "testcase", attrib={"name": _clean(result.name), **where})
    if result.failures:
        count = len(result.failures)
        message = f"{count} {'expectation was' if count == 1 else 'expectations were'} not met"
        ET.SubElement(case, "failure", message=message, type="expectation").text = _clean("\n".join(map(_said, result.failures)))


def _said(failure: Failure) -> str:
    evidence = [f"    {e.gate}: {e.detail}" for e in failure.evidence]
    told = [f"{sign} {text}" for sign, text in (("-", failure.expected), ("+", failure.found)) if text]
    return "\n".join([f"at {Duration(failure.at)}, expected by {failure.place}:", *told, *evidence])


def _clean(text: str) -> str:
    """The text without characters that XML has no form for."""
    return _NO_XML.sub("\ufffd", text)
