"""Block allocators, tables and the block manager of v0; no queues and no arrays."""
