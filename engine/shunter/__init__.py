"""Shunter: a declarative GitOps policy engine that moves LLM serving workers by checkpoint and restore."""

__version__ = "0.1.0"
