"""The GPUs of this machine: which there are, what they are doing, and who is on them."""
