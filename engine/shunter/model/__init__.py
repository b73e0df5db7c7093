"""Frozen types and the words of the product. Imports nothing else of ours, reads no clock, does no I/O."""
