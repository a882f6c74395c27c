"""Cache events of TensorRT-LLM, numbered, kept and serialised; nothing here changes a cache."""
