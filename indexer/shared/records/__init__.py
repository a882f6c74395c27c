"""Pods' records as readers see them, and the trust in them; no blocks.

The trust in shared mode is decided in steps: by the record itself (`registry`), by writes that may be
lost (`unconfirmed`), and for a rank by both (`remote_rank`).
What one answer may lack beside that, `indexer.shared.query.index` decides (`_doubt`).
"""
