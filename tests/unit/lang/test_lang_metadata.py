"""What Kustomize and Argo CD write into a policy's metadata is taken, and changes nothing of what it says."""

import pytest
from lang_documents import CHECKPOINT
from shunter.lang.load import check_text

RENDERED = """\
  annotations:
    argocd.argoproj.io/sync-wave: "2"
    config.kubernetes.io/origin: "path: base/policy.yaml"
  namespace: shunter
"""


def rendered(extra: str) -> str:
    """The document with these lines below a `metadata` that has its name on a line of its own."""
    head, metadata, rest = CHECKPOINT.partition("metadata: {name: ")
    name, brace, rest = rest.partition("}")
    assert metadata
    assert brace
    return f"{head}metadata:\n  name: {name.split(',')[0]}\n{extra}{rest.lstrip(chr(10))}"


def test_what_was_rendered_says_what_the_file_says() -> None:
    (plain,), problems = check_text("p.yaml", rendered("").encode())
    assert problems == ()
    (taken,), problems = check_text("p.yaml", rendered(RENDERED).encode())
    assert problems == ()
    assert (taken.name, taken.mode, taken.selector) == (plain.name, plain.mode, plain.selector)
    assert taken.document.metadata.namespace == "shunter"


@pytest.mark.parametrize(
    ("extra", "line", "column"),
    [
        ("  namespace: Not_A_Name\n", 5, 14),
        ("  namespace: 7\n", 5, 14),
        ("  annotations: {wave: 2}\n", 5, 23),
        ("  annotations: wave\n", 5, 16),
        ("  finalizers: [x]\n", 5, 3),
    ],
)
def test_what_is_none_of_these_is_told_at_its_place(extra: str, line: int, column: int) -> None:
    _, problems = check_text("p.yaml", rendered(extra).encode())
    assert [(p.place.line, p.place.column) for p in problems if p.place] == [(line, column)], problems
