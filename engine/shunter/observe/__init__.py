"""Where facts come from: Prometheus samples, agents' reports, recorded snapshots."""
