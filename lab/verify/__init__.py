"""`warmpath record`, `verify` and `check-index`: compare with what engines and publishers say."""
