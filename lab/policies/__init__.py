"""Policies that others published (Dynamo, llm-d, SGLang, Preble, LMetric), for comparison with ours.

Each docstring names its source.
"""
