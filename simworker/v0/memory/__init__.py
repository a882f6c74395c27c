"""Arrays that v0's blocks lie in, and the copies between them; no allocation of blocks."""
