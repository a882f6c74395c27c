"""Text to tokens: tokenizers, prefix stores, chat templates, an async pool; no blocks and no pods."""
