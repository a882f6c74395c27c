"""Parts that every process needs: tasks, signals, listeners, TLS and bounded logs; nothing about blocks."""
