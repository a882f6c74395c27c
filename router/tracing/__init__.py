"""Traces of calls and the time of their steps: seams that do nothing where nobody asks for them.

Which spans there are: docs/reference/tracing-and-live-page.md. The metrics are declared in
`router/metrics`.
"""
