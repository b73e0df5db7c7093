"""How a worker is taken out of traffic, put back, and probed."""
