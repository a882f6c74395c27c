"""Pure functions from matches and load to scores and a pick. Standard library only."""
