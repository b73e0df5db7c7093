"""Where pull requests are: one comment on each, which is brought up to date and never posted twice."""
