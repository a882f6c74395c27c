"""Makes tokens of texts and chats, by the tokenizers and templates of prefixstore. No blocks."""
