"""The removal of slots that no claim names any more; it never touches slots that a claim names."""
