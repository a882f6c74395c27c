"""Chat requests, chat templates, and the processes that render chats to text; no tokens."""
