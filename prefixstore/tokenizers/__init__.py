"""Tokenizers and the sources that load them; prefix stores live in `prefixstore/store.py`."""
