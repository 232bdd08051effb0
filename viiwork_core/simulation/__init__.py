"""The mesh in virtual time: the same router, queue, policies and affinity code, with models of hosts and agents."""
