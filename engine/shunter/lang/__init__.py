"""The policy language: YAML files to a `PolicySet`, or problems with the line and column. The only room that knows CEL."""
