"""What a node would do by itself, said before it is needed: in the words of the same rule that the node goes by."""

import pytest
from decide_world import FAST, NOW, PyRules, figures, node, notice, policy_set, preemption, snap, worker
from shunter.decide.standing import alone, fallbacks
from shunter.model.operation import EngineState
from shunter.model.snapshot import FAR_S, NoticeKind

D0 = worker("decode-0", "a/0")
NODES = [node("a", ("decode-0",)), node("b"), node("c")]
IMAGED = "an image of it goes to b or c"
HIDDEN = "it is taken out of the router's sight"


def said(given, *others, of=D0, nodes=NODES, **spec):
    snapshot = snap(nodes, [of], notices=(given, *others))
    policies = policy_set(preemption(notices=tuple(NoticeKind), **spec), figures())
    found = fallbacks(policies, snap(nodes, [of]), EngineState(), NOW, PyRules(), FAST)
    return alone(given, snapshot, found)


@pytest.mark.parametrize(
    ("kind", "lead", "does"),
    [
        (NoticeKind.PREEMPTION, 60.0, f"{HIDDEN}, and {IMAGED}"),
        (NoticeKind.PREEMPTION, None, f"{IMAGED}, and it serves on"),
        (NoticeKind.GPU_FAILING, None, f"{IMAGED}, and it serves on"),
        (NoticeKind.PREEMPTION, -1.0, "nothing, as its deadline is over"),
        (NoticeKind.REBALANCE, None, "nothing, as a hint waits for the engine"),
        (NoticeKind.MAINTENANCE, FAR_S + 1.0, "nothing, as a hint waits for the engine"),
        (NoticeKind.GONE, None, "nothing, as nothing can be dumped there any more"),
    ],
)
def test_by_kind_and_deadline(kind, lead, does):
    assert said(notice("a", lead, kind)) == {"decode-0": does}


def test_nothing_is_dumped_through_a_gpu_that_is_gone_whichever_notice_it_is():
    gone = notice("a", None, NoticeKind.GPU_FAILING, id="gpu", slot="a/0", dumpable=False)
    assert said(notice("a"), gone) == said(gone) == {"decode-0": "nothing, as nothing can be dumped there any more"}
    other = notice("a", None, NoticeKind.GPU_FAILING, id="gpu", slot="a/1", dumpable=False)
    assert said(notice("a"), other) == {"decode-0": f"{HIDDEN}, and {IMAGED}"}
    assert said(other) == {}, "nobody is there"


def test_what_a_policy_wants_otherwise_and_what_there_is_no_node_for():
    undated, wanted = notice("a", None), "nothing, as no policy that is in force says what"
    assert said(undated, otherwise=()) == said(notice("a"), otherwise=()) == {"decode-0": wanted}
    assert said(notice("a"), otherwise=("drain",)) == {"decode-0": HIDDEN}
    never = "nothing, as it has no deadline, and nobody knows for how long the worker would be out of the router's sight"
    assert said(undated, otherwise=("drain",)) == said(undated, nodes=NODES[:1]) == {"decode-0": never}


def test_no_image_of_one_that_isnt_to_be_trusted():
    suspect = worker("decode-0", "a/0", doubt="XID 31")
    assert said(notice("a"), of=suspect) == {"decode-0": HIDDEN}
    assert said(notice("a", None), of=suspect) == {"decode-0": "nothing, as an image of it isn't to be trusted"}
