"""Formatting: one form, nothing but white space changed, the same meaning, and nothing left to do the second time."""

import re
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lang_documents import ALL
from shunter.lang.diagnostics import SourceText
from shunter.lang.fmt import formatted
from shunter.lang.yaml import parse, plain
from shunter.model.errors import Rejected

MESSY = """\


---
# why
apiVersion:   shunter.dev/v1alpha1
kind: CheckpointPolicy\x20\x20
metadata:
      name: a
      # labels follow
      labels:
         team:  x   # who
spec:


    workers:
        role: decode
        # at the end of workers
    every: 5m
    when: >-
        worker.kvUsage < 0.9 &&
          worker.waiting == 0


    keep: {last: 2,
           }
    quoted: "one\x20\x20
      two"
  # not aligned with anything
    list:
    -   first
    -
        x: 1
        y: 2
    - - a
      -   b
...
---
b:
- 1


"""
NEAT = """\
# why
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata:
  name: a
  # labels follow
  labels:
    team: x   # who
spec:

  workers:
    role: decode
    # at the end of workers
  every: 5m
  when: >-
      worker.kvUsage < 0.9 &&
        worker.waiting == 0

  keep: {last: 2,
         }
  quoted: "one\x20\x20
    two"
# not aligned with anything
  list:
    - first
    -
      x: 1
      y: 2
    - - a
      - b
---
b:
  - 1
"""


def fmt(text: str) -> str:
    return formatted("a.yaml", text.encode()).decode()


def meaning(text: str):
    nodes, problems = parse(SourceText("a.yaml", text))
    assert not problems
    return [plain(node) for node in nodes]


def test_a_messy_file():
    assert fmt(MESSY) == NEAT
    assert fmt(NEAT) == NEAT


@pytest.mark.parametrize("document", ALL)
def test_sound_policies_are_in_form_already(document: str):
    assert fmt(document) == document


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a: 1", "a: 1\n"),
        ("a: 1\r\nb:\r\n    c: 2\r\n", "a: 1\nb:\n  c: 2\n"),
        ("\ufeffa: 1\n", "a: 1\n"),
        ("", ""),
        ("\n\n", ""),
        ("# only\n\n", "# only\n"),
        ("a: |\n  x\n\n\n", "a: |\n  x\n"),
        ("a: |+\n  x\n\n\n", "a: |+\n  x\n\n\n"),  # they are part of the text
        ("a: |\n  x", "a: |\n  x"),  # a line end would be part of the text
        ("b:\n    a: |2\n        two\n      one\n\n    c: 1\n", "b:\n  a: |2\n      two\n    one\n\n  c: 1\n"),
        ("a:\n    |\n    x\n", "a:\n  |\n  x\n"),
        ("%YAML 1.2\n---\na: 1\n", "%YAML 1.2\n---\na: 1\n"),
        ("a: 1\n---\n---\nb: 1\n---\n", "a: 1\n---\nb: 1\n"),
        ("# c\n---\na: 1\n", "# c\n---\na: 1\n"),
        ("a: |\n  ---\n  x\n", "a: |\n  ---\n  x\n"),
        ("a: b\n   c\nd:\n     e\n     f\n", "a: b\n   c\nd:\n  e\n  f\n"),
        ('"a" :   {b:   1,c: [ 1,2 ]}\n', '"a": {b: 1,c: [ 1,2 ]}\n'),
        ("a:\n  - b: 1\n    c: 2\n  #  -- x --\n  - -1\n", "a:\n  - b: 1\n    c: 2\n  #  -- x --\n  - -1\n"),
        ("a:\n- # why\n  b: 1\n", "a:\n  - # why\n    b: 1\n"),
        ("a:\n- b: |\n    x\n\n    y\n- c\n", "a:\n  - b: |\n      x\n\n      y\n  - c\n"),
    ],
)
def test_details(before: str, after: str):
    assert fmt(before) == after
    assert fmt(after) == after


@pytest.mark.parametrize(("text", "code"), [("a: {", "SH102"), ("a: 1\na: 2\n", "SH103"), ("a: &x 1\n", "SH104"), ("\0", "SH101")])
def test_unsound_files_are_refused(text: str, code: str):
    with pytest.raises(Rejected, match=code):
        fmt(text)


def test_what_cannot_be_kept_is_refused_and_not_changed():
    with pytest.raises(Rejected, match="SH151"):
        fmt("x:\n    ? a\n    : b\n    c:\n     - d\n")


WORDS = st.sampled_from(
    [
        "a",
        "b-c",
        "'q  q'",
        '"d # d"',
        "x y",
        "-1",
        "{k:  v, l: [1,  2]}",
        "[ ]",
        "",
        "true",
        "|\n  one\n\n   two",
        ">-\n  f\n  g\n",
        '"m\n   n"',
        "p\n  q",
    ]
)
COMMENTS = st.sampled_from(["", "", "", "# c", "#d: e", "# - f"])


@st.composite
def blocks(draw: st.DrawFn, depth: int = 0) -> list[str]:
    """Lines of a mapping or a list in any form that YAML allows, with comments and blank lines between."""
    step = draw(st.integers(1, 5))
    lines: list[str] = []
    listed = depth > 0 and draw(st.booleans())
    for number in range(draw(st.integers(1, 3))):
        comment = draw(COMMENTS)
        lines += [" " * draw(st.sampled_from([0, 0, step, 7])) + comment] if comment else []
        lines += [draw(st.sampled_from(["", "  "]))] if draw(st.integers(0, 4)) == 0 else []
        head = "-" if listed else f"k{number}{draw(st.sampled_from(['', ' ']))}:"
        if depth < 3 and draw(st.booleans()):
            inner = [" " * step + line if line else line for line in draw(blocks(depth + 1))]
            lines += [head + draw(st.sampled_from(["", "  # why"])), *inner]
            continue
        first, *more = draw(WORDS).split("\n")
        tail = draw(st.sampled_from(["", " ", "   # t"])) if not more and first else ""
        lines += [f"{head}{' ' * draw(st.integers(1, 4))}{first}{tail}", *(" " * step + line if line else line for line in more)]
    return lines


@settings(max_examples=120, deadline=None)
@given(st.lists(blocks(), min_size=1, max_size=3))
def test_any_file_keeps_its_meaning_and_its_ink_and_is_done_at_once(documents: list[list[str]]):
    before = "\n---\n".join("\n".join(lines) for lines in documents)
    if parse(SourceText("a.yaml", before))[1]:
        return  # not all of it is YAML
    after = fmt(before)
    assert fmt(after) == after
    assert meaning(after) == meaning(before) or meaning(after) == [m for m in meaning(before) if m is not None]
    assert [c.rstrip() for c in re.findall(r"#.*", after)] == [c.rstrip() for c in re.findall(r"#.*", before)]
    for line in after.split("\n"):
        if re.match(r" *k\d *:", line):
            assert (len(line) - len(line.lstrip())) % 2 == 0, after


def test_the_fuzz_makes_yaml_most_of_the_time():
    counts = {True: 0, False: 0}

    @settings(max_examples=100, deadline=None, database=None, derandomize=True)
    @given(blocks())
    def count(lines: list[str]) -> None:
        counts[not parse(SourceText("a.yaml", "\n".join(lines)))[1]] += 1

    count()
    assert counts[True] > counts[False], counts


def test_indentation_does_not_change_comments_in_values():
    text = textwrap.dedent("""\
        spec:
            when: |
                # not a comment of the file's
                a > 1
        """)
    assert fmt(text) == "spec:\n  when: |\n      # not a comment of the file's\n      a > 1\n"
