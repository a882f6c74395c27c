"""`warmpath record` and `warmpath verify`: record engines, replay recordings; no running router."""
