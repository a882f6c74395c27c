"""v1's scheduler: queues, steps, preemption; the cache is `cache`."""
