"""Evidence of predictions and picks, and findings from it; nothing here changes a pick."""
