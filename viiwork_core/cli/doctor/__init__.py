"""viiwork doctor: what is right and wrong with this machine and its node, each with what to do about it."""
