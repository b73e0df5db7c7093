"""Durable operations: intent before effect, epochs, orders to agents, recovery after a crash."""
