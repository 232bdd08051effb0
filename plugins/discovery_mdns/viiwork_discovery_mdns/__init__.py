"""Finds viiwork nodes by mDNS."""
