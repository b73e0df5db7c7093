"""Where policies come from: Git commits and directories. Gives bytes and their provenance, never parses them."""
