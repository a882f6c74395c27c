"""Parses OpenAI request bodies, slice by slice where they are large; knows no models and no tokens."""
