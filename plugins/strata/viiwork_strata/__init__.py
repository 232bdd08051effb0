"""Strata as an engine of viiwork."""
