"""The router process and the command line."""
