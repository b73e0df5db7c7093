"""Kubernetes: watching its resources, leading by its Lease, policies as custom resources and their status. Knows the model only."""
