"""llm-d's indexer service: `indexer.v1.IndexerService`, with scores in llm-d's unit."""
