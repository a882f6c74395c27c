"""Prefix stores (LRU, trie) and their contract; no tokenizers."""
