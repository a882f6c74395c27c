"""Processes on loopback, and traffic for them: `warmpath demo`, `warmpath fleet`, `warmpath gateway`."""
