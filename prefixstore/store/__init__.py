"""Prefix stores: their contract, the reference, LRU and trie, and the memo of keys; no tokenizer."""
