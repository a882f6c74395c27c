"""`warmpath record` and `warmpath verify`: recordings of engines, predicted again; no running router."""
