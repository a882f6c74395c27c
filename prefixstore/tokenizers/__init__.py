"""Tokenizers, and the sources that they come from; no prefix is remembered here."""
