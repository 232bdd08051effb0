"""llama.cpp's llama-server as an engine of viiwork."""
