"""Text to tokens: tokenizers, prefix stores, chat templates and the async pool."""
