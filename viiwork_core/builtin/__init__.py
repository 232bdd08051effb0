"""The plugins that come with the core; they see no more of it than a stranger's plugin does."""
