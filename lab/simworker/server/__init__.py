"""One worker in real time: ranks, adapters, sleep, metrics, text; HTTP is `lab.simworker.api`."""
