"""The shared index: which pods hold which blocks, in Redis, for every router of a deployment."""
