"""v1's scheduler: queues, steps, preemption; the cache is in `simworker.v1.cache`."""
