"""Arrays that hold v0's blocks, and the copies between them; no allocation of blocks."""
