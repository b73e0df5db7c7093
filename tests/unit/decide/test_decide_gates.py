"""What an expression read is told as it was read: of labels, the one that it names."""

import pytest
from shunter.decide.gates import Teller, ask
from shunter.lang.cel import CelRules
from shunter.model.expression import Expression, Undecided

RULES = CelRules()
LABELS = {"tier": "old", "zone": "eu-1"}


@pytest.mark.parametrize(
    ("text", "inputs", "detail"),
    [
        ('node.labels["tier"] == "old"', {'node.labels["tier"]': "old"}, 'node.labels["tier"] = old'),
        ("node.labels['zone'] != 'us-1'", {'node.labels["zone"]': "eu-1"}, 'node.labels["zone"] = eu-1'),
        ('"tier" in node.labels && node.labels.tier == "old"', {'node.labels["tier"]': "old"}, 'node.labels["tier"] = old'),
        ('!("gone" in node.labels)', {'node.labels["gone"]': None}, 'node.labels["gone"] = absent'),
        ("size(node.labels) == 2", {"node.labels": "2 labels"}, "node.labels = 2 labels"),
    ],
)
def test_the_label_that_was_read_is_shown(text, inputs, detail):
    expression, scope = Expression(text=text), {"node.labels": LABELS}
    answer, evidence = ask(RULES, "where", expression, scope)
    assert answer is True
    assert ({i.name: i.value for i in evidence.inputs}, evidence.detail) == (inputs, detail)
    assert Teller(RULES).tell("where", expression, scope, True) == evidence


def test_what_differs_in_a_label_is_not_told_as_one():
    teller, expression = Teller(RULES), Expression(text='node.labels["tier"] != "new"')
    told = [teller.tell("where", expression, {"node.labels": {"tier": tier, "n": n}}, True) for tier, n in (("old", "1"), ("mid", "1"))]
    assert [t.detail for t in told] == ['node.labels["tier"] = old', 'node.labels["tier"] = mid']
    assert teller.tell("where", expression, {"node.labels": {"tier": "old", "n": "2"}}, True) is told[0], "the others don't count"


def test_a_label_that_is_not_there_is_no_answer():
    answer, evidence = ask(RULES, "where", Expression(text='node.labels["gone"] == "x"'), {"node.labels": LABELS})
    assert isinstance(answer, Undecided)
    assert [(i.name, i.value) for i in evidence.inputs] == [('node.labels["gone"]', None)]
