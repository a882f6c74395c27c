"""Reads what another gateway's access log tells of requests, and compares its choices with ours."""
