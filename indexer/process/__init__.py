"""Parts that every process needs: tasks, signals, listeners and bounded logs; nothing about blocks."""
