"""The composition root: the one place that builds a node out of its parts."""
