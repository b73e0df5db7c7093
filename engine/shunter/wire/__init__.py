"""Protobuf messages and stubs generated from schemas/agent.proto, and the little that maps them to the model."""
