"""The shared index in Redis, which publishers write and many routers read.

`layout` is its form, `redis` the connections, `writer` one pod's writer, `records` the pods' records and
the trust in them. `replica` copies whole pods, `query` asks for each prompt, `sweep` removes dead slots.
"""
