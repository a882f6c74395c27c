"""The names that one rank's engine gives to blocks, over the compiled index.

Their bytes are read in `scan`.
"""
