"""The CPU tier: chunks, jobs, transfers and their events; the GPU's blocks are in `cache`."""
