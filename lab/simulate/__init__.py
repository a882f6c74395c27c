"""`warmpath simulate`: runs the router's own decisions on simulated engines and a virtual clock."""
