"""The router's process; blocks and their index live in `indexer/`, commands in `cli/`."""
