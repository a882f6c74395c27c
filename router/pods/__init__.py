"""Pods: their table, discovery, following and probing; how busy they are is `load`."""
