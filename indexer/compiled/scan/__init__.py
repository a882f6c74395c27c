"""Bytes of batches and of token ids, read by compiled functions; nothing here knows the index."""
