"""Prefix stores (reference, LRU, trie), their contract, and kept block keys; no tokenizers."""
