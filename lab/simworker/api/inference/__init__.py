"""The APIs that generate tokens: each makes a prompt of its requests' bodies, and answers of tokens."""
