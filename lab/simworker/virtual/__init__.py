"""Many workers on a virtual clock, and recorded workloads for them; no sockets."""
