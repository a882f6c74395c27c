"""Block keys, the block-to-pods index, engine codecs and event streams; no texts, no picks."""
