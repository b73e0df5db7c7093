"""Custom resource definitions of the policy kinds, made from the JSON Schemas that `shunter.lang.schema` makes from the model."""
