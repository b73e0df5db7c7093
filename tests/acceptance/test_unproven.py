"""An agent tries a checkpoint of a small process when it starts; where that fails, no worker is frozen."""

import pytest
from conftest import MakeScene

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

SAVE = """
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save}
spec: {workers: {graph: tiny}, notices: [preemption], reserve: 5s, otherwise: [checkpoint]}
"""


def test_where_a_trial_fails_the_worker_runs_on_untouched(scene: MakeScene) -> None:
    s = scene(policies={"save.yaml": SAVE}, prometheus=False)
    s.stream(300)
    node = s.fleet.nodes["node-a"]
    node.kill_agent()
    (node.folder / "state" / "canary").write_text("where a folder should be")  # so that there can be no trial
    node.start()
    s.wait("the new agent to take orders", node.takes_orders)
    s.fleet.start_engine()
    node.post_notice("preemption", "60s", "n1")
    assert s.outcome("move")["status"] != "succeeded"
    assert "SH704" in "".join(str(one.get("code")) + str(one.get("reason")) for one in s.outcomes("move")), s.logs()
    assert "SH704" in node.log.read_text()
    assert s.copies("decode-0") == 1
    s.whole()
