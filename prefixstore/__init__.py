"""Text to tokens: tokenizers, prefix stores, chat templates, the async pool; no blocks and no pods."""
