"""`python -m bench policy`: picks and published policies in simulations, on a grid and under faults."""
