"""Tokenizers and the sources that load them."""
