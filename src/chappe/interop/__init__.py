"""Directory forms of other systems. Blocking; no network, no daemons."""
