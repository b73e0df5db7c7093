"""Findings and plans. Pure: the model goes in, the model comes out; no I/O, no clock, no randomness."""
