"""The worker as a server: fence, unfence, health."""
