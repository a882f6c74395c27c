"""The TOML file: its schema, reading and checking; nothing here starts a part."""
