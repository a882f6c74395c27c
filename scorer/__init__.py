"""Pure functions from matches and load to scores and a pick; only the standard library and NumPy."""
