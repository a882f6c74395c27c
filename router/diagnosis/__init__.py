"""Compares predicted with actual cached tokens and derives findings; nothing here changes a pick."""
