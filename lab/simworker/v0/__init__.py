"""vLLM v0: block manager, allocators, swap and the three-queue scheduler, as of 0.9.2."""
