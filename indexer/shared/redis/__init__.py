"""How Redis is reached: addresses, connections, clusters, Sentinels.

Nothing here knows what is stored.
"""
