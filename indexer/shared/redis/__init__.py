"""How Redis is reached: addresses, connections, clusters, Sentinels.

Nothing here knows what is stored.

redis-py opens the connections (`connect`). Its own cluster and Sentinel clients (8.1.0) were tried in
the place of `client`, on the tests of this folder and on tests/faults. They follow killed masters,
fail-overs and moving slots as well as ours. Ours stays for these reasons (redis-py's figures, ours in
brackets):

- Connecting is part of a call, and a call that misses its deadline closes its connection. With 20 ms of
  latency each way and a deadline of 100 ms a new client had no whole answer in 8 s and 83 connections
  (0.1 s, 3 connections). Latency of 0.4 s for 3 s cost 24 new connections (none).
- Each call has connections of its own. Any new connection may lead to a server that has lost its
  content, so each counts as a disruption, after which nothing is exact before audits: 50 calls at once
  made 148 (none).
- A slot that no node served when the client read the map counts as unserved from then on, although a
  node serves it again (ours finds that node after 0.2 s).
- Sentinels are asked one after the other. Where the first of three hangs, no call with a deadline of
  0.4 s is answered (the first call is). The client notices that a living master was replaced only when
  that says READONLY: acknowledged writes went to it for 10 s, and were lost (1 s).
- A pipeline over several nodes has no partial answers, and 64 commands take 6 ms of CPU (1.5 ms).
"""
