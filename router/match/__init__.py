"""Finds how much of a prompt each rank holds, by index and beliefs; no loads and no choices."""
