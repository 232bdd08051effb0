"""Setting up a machine: what is there, what it could serve, and the files and the service that make it so."""
