"""Traces of calls and the times of their steps; by default both do nothing.

docs/reference/tracing-and-live-page.md lists the spans. The metrics are declared in `router/metrics`.
"""
