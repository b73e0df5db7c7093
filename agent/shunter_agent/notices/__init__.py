"""Where the agent learns that its node is going: one module per source."""
