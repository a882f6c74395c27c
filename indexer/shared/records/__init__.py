"""Pods' records as readers see them, and the trust in them; no blocks.

The trust in shared mode is decided in steps: `registry` by the record itself, and by writes that may be
lost; `record_source` for a rank; `indexer.shared.query.index` (`_doubt`) by what one answer may lack.
"""
