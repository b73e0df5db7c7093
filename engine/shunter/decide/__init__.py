"""Pure decisions: policy set, snapshots and state in; findings and a plan out. No I/O, no clock, no randomness."""
