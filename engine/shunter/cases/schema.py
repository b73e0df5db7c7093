"""The JSON Schema of test files, generated from the structs in `cases.document` by the same rules as the policies' own."""

import json
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from shunter.cases.document import Suite
from shunter.lang.schema import definitions, strict_validator

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

SCHEMA_ID: Final = "https://shunter.dev/schemas/policy-test.v1alpha1.json"


@cache
def case_schema() -> dict[str, Any]:
    """The schema of a test file, Draft 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "Shunter policy tests, shunter.dev/v1alpha1",
        "$ref": "#/$defs/Suite",
        "$defs": {name: body for name, body in definitions(Suite).items() if name != "Expression"},
    }


@cache
def case_validator() -> "Draft202012Validator":
    """The validator of test files, built once."""
    return strict_validator(case_schema())


def rendered() -> str:
    """The schema file's text, with a newline at its end."""
    return json.dumps(case_schema(), indent=2, ensure_ascii=False) + "\n"
