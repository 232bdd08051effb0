"""What the relay costs: a node beside two other relays, measured on one machine in one run (`make bench`)."""
