"""The mesh secret, signatures and encryption."""
