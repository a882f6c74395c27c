"""Pure functions from matches and load to scores and a pick. Imports the standard library and NumPy only."""
