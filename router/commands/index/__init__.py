"""`warmpath index`: the shared index surveyed, checked, swept and dumped; serving never uses it."""
