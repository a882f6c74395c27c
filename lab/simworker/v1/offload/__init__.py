"""The CPU tier: chunks, jobs, transfers, events; the GPU's blocks are in `lab/simworker/v1/cache`."""
