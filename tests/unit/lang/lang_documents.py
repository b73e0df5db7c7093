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

REBALANCE = """\
apiVersion: shunter.dev/v1alpha1
kind: RebalancePolicy
metadata: {name: spread}
spec:
  workers: {role: decode}
  when: worker.kvUsage > 0.9 && node.freeSlots == 0
  for: 2m
  to: {where: '!node.noticed', prefer: 'node.gpuModel == "B200" ? 2.0 : 1.0'}
  gain: {atLeast: 0.5}
  cooldown: 30m
  step: 2
"""

BUDGET = """\
apiVersion: shunter.dev/v1alpha1
kind: DisruptionBudget
metadata: {name: gently}
spec:
  workers: {role: decode, where: 'worker.labels["tier"] == "gold"'}
  operations: [move, drain]
  per: zone
  maxConcurrent: 10%
  maxPerWindow: {max: 3, window: 10m}
  windows:
    - {zone: Europe/Berlin, from: "22:00", to: "06:00", days: [mon, tue]}
    - {zone: UTC, from: "00:00", to: "24:00", days: [sun]}
"""

PROFILE = """\
apiVersion: shunter.dev/v1alpha1
kind: FleetProfile
metadata: {name: b200}
spec:
  gpuModel: NVIDIA B200
  dump: 40GB/s
  restore: 30GB/s
  network: 12.5GB/s
  fixedDump: 800ms
  fixedRestore: 0s
  nativeStart: 4m
  prefillRate: 20000
  prefillDoubling: 65536
  lead: {preemption: 30s, maintenance: 1h}
"""

FOLLOW = """\
apiVersion: shunter.dev/v1alpha1
kind: ReassignmentPolicy
metadata: {name: planned, namespace: serving, annotations: {argocd.argoproj.io/sync-wave: "1"}}
spec:
  workers: {graph: tiny}
  from: decode
  to: prefill
  follow: planner
  for: 30s
  method: checkpoint
"""

CADENCE = """\
apiVersion: shunter.dev/v1alpha1
kind: CheckpointPolicy
metadata: {name: as-often-as-it-pays}
spec:
  workers: {role: decode}
  cadence: {optimal: {hazard: 1/1000h, min: 2m, max: 30m, hinted: 1/2h}}
  pause: {atMost: 20s, share: 10%}
  overhead: {atMost: 1.5%}
  prefer: idle
  keep: {last: 2, within: 1h}
"""

ALL = (REASSIGN, PREEMPT, CHECKPOINT, REBALANCE, BUDGET, PROFILE, FOLLOW, CADENCE)


def swap(text: str, old: str, new: str) -> bytes:
    """`text` with its one `old` replaced: the damage must hit exactly what is meant."""
    assert text.count(old) == 1, (text.count(old), old)
    return text.replace(old, new).encode()
