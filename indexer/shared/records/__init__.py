"""Pods' records as readers see them, and the trust in them; no blocks.

The trust in shared mode is decided in steps: by the record itself (`registry`), by writes that may be
lost (`unconfirmed`), and for the rank of one answer by both (`remote_rank`).
"""
