"""Settings of the KV cache, and how far memory goes with them; nothing is allocated."""
