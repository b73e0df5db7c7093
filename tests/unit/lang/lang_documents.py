"""Sound policies for the tests of the language, to be damaged one thing at a time."""

REASSIGN = """\
apiVersion: shunter.dev/v1alpha1
kind: ReassignmentPolicy
metadata: {name: relieve-prefill, labels: {team: inference}}
spec:
  workers: {graph: tiny}
  from: decode
  to: prefill
  when: pools.prefill.waiting > 30 && pools.decode.kvUsage < 0.6
  for: 5s
  pick:
    where: worker.sessions < 4
    prefer: -worker.kvTokens
  limits: {from: {min: 2}, to: {max: 2}, step: 1}
  cooldown: 60s
"""

PREEMPT = """\
apiVersion: shunter.dev/v1alpha1
kind: PreemptionPolicy
metadata: {name: save-sessions}
spec:
  workers: {role: decode}
  notices: [preemption, gone]
  move:
    to: {prefer: 'node.labels["capacity"] == "reserved" ? 1.0 : 0.0'}
    order: worker.kvTokens
  reserve: 10s
  otherwise: [checkpoint, drain]
"""

CHECKPOINT = """\
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: recent-images}
spec:
  workers: {all: true}
  every: 5m
  when: worker.kvUsage < 0.9
  keep: {last: 2}
  copies: 2
"""

ALL = (REASSIGN, PREEMPT, CHECKPOINT)


def swap(text: str, old: str, new: str) -> bytes:
    """`text` with its one `old` replaced: the damage must hit exactly what is meant."""
    assert text.count(old) == 1, (text.count(old), old)
    return text.replace(old, new).encode()
