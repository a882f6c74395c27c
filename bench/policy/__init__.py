"""`python -m bench policy`: picks against published policies in simulations, on a grid and under faults."""
