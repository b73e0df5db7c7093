"""Text to a PolicySet or positioned errors. The only room that knows YAML, JSON Schema and CEL."""
