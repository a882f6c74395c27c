"""`python -m warmpath.lab.bench policy`: picks and published policies, on a grid and under faults."""
