"""The router's process and the command line; blocks and their index live in `indexer/`."""
