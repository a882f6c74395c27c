"""v0's scheduler: queues, budgets and preemption; blocks are the block manager's."""
