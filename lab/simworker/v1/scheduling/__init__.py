"""v1's scheduler: queues, steps, preemption; the cache is in `lab.simworker.v1.cache`."""
