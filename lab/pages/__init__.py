"""Writes the reference pages of the docs from the code."""
