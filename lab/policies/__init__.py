"""Policies for comparison with ours: simple ones, and those that others published.

Docstrings name the sources: Dynamo, llm-d, SGLang, Preble, LMetric.
"""
