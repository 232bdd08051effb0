"""Kits and fakes for tests, the project's own and a plugin author's."""
