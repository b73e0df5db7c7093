"""Wires the rooms into a running engine."""
