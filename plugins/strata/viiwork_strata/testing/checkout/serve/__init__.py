"""Stands where a Strata checkout has its server."""
