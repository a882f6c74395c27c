"""Traffic to simulate: users' logs, traces, and what is made up."""
