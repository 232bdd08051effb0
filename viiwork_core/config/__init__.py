"""The configuration: schema, file, paths."""
