"""Dynamo's own resources: what they say of its graphs, and acting on the ones that its operator goes by."""
