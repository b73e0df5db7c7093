"""What policies would have done over a stretch of history, and how two revisions of them differ in outcome. Pure: frames are given."""
