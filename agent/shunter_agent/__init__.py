"""The per-node agent: carries out orders by checkpoint and restore, and tells the engine what it sees."""
