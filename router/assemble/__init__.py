"""Builds the router: `running` makes texts, index, picks, calls and pages, one after the other."""
