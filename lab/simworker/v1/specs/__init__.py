"""KV cache specs of layers and of groups of layers; no blocks and no memory."""
