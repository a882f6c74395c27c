"""The names that one rank's engine gives to blocks, over the compiled index.

A name is an engine's hash of a block. A *plain* name stands for one block and is held once in each place
(tier and cache group); arrays keep it (`names`, `plain`). Any other name is *odd*, such as one with a
second copy or the name of a chunk of several blocks; the pure resolver keeps it (`odd`).
`indexer.compiled.scan` reads the names' bytes.
"""
