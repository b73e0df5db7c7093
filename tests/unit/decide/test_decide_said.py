"""What is left for later: in brief first, whole when it is asked for, and by whoever has something to say."""

import pytest
from decide_world import worker
from shunter.decide.said import UNCOVERED, Left, Notes, Said
from shunter.model.finding import Evidence, Finding, Findings, Verdict, chapters, tally
from shunter.model.ids import PolicyName

A, B, C = (worker(f"decode-{n}", f"{n}/0") for n in "abc")
P = PolicyName("p")
BUSY = Said(Verdict.HOLD, "it is busy", "worker", (Evidence(gate="worker", result=False),))


def test_one_by_one_and_each_by_the_first_that_has_something_to_say():
    notes, asked = Notes(), []

    def silent_of_b(one):
        asked.append(("first", one.id))
        return None if one is B else UNCOVERED

    def second(one):
        asked.append(("second", one.id))
        return BUSY

    notes.say(P, "voluntary", C.id, BUSY._replace(reason="said"))
    notes.leave(P, "voluntary", Left((A, B, C), silent_of_b, lambda many: [None if one is B else UNCOVERED for one in many], frozenset()))
    notes.leave(P, "voluntary", Left((A, B), second, lambda many: [BUSY] * len(many), frozenset({A.id})))
    found = Findings(notes.chapters)
    (chapter,) = found.chapters()
    assert [(s, b.reason) for s, b in zip(chapter.subjects, chapter.briefs, strict=True)] == [
        (A.id, UNCOVERED.reason),
        (B.id, "it is busy"),
        (C.id, "said"),
    ]
    assert (len(found), asked, tally(found)) == (3, [], {Verdict.PASS: 1, Verdict.HOLD: 2})
    assert chapter.tell(1).evidence == BUSY.evidence
    assert asked == [("first", B.id), ("second", B.id)]
    assert [f.reason for f in found] == [UNCOVERED.reason, "it is busy", "said"]
    assert found == tuple(found)
    assert [c.subjects for c in chapters(tuple(found))] == [[A.id, B.id, C.id]]
    assert chapters(found)[0].tell(2) is found[2], "once all are told, no other is made"


def test_who_says_something_else_in_brief_is_found_out():
    notes = Notes()
    notes.leave(P, "voluntary", Left((A,), lambda one: BUSY, lambda many: [UNCOVERED], frozenset()))
    with pytest.raises(AssertionError, match="in brief it is said alike"):
        list(Findings(notes.chapters))


def test_findings_of_any_kind_have_chapters_in_their_own_order():
    one, other = (
        Finding(policy=PolicyName(p), subject=s, verdict=Verdict.PASS, lane="voluntary", reason="r") for p, s in (("q", "b"), ("p", "a"))
    )
    assert [(c.policy, c.subjects, c.tell(0)) for c in chapters([one, other])] == [("q", ["b"], one), ("p", ["a"], other)]
