"""What people and pipelines read: text, JSON."""
