"""Block keys, the block-to-pods index, engine codecs, event streams and ingestion."""
