"""The version of the plugin contract."""

API_MAJOR = 1
"""Raised when a plugin written for the number before would no longer work."""

API_MINOR = 3
"""Raised when something was added that older plugins need not know."""
