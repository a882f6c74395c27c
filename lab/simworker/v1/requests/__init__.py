"""Requests of v1: tokens, sampling parameters, and requests with lengths only; no blocks."""
