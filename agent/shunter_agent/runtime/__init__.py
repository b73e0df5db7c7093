"""Freeze, dump, restore and thaw processes: one port (`port`), several drivers."""
