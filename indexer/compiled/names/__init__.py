"""The names that one rank's engine gives to blocks, over the compiled index.

`indexer.compiled.scan` reads their bytes.
"""
