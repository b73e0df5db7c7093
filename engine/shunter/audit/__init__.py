"""Hash-chained, durable records of every decision and every step."""
