"""What a plugin implements or receives. No I/O and nothing heavy is imported here."""
