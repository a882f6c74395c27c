"""The paths that generate tokens: a body to a prompt, and tokens to that API's answer."""
