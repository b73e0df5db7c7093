"""Images on disk and on their way to other agents."""
