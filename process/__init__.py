"""Parts that every process needs: tasks, signals, listeners, TLS, bounded logs; nothing about blocks."""
