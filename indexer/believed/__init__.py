"""Blocks that were sent to ranks and not announced yet; what events say is not here."""
