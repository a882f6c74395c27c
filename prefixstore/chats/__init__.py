"""Chat requests, templates, and the processes that render them; what comes out is a text."""
