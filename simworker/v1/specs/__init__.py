"""KV cache specs of layers and groups of layers; no blocks and no sizes of memory."""
