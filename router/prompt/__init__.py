"""Turns a request's prompt into tokens and blocks; knows no pods and no index."""
