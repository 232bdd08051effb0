"""Plugins: finding, collecting, configuring and guarding them."""
