"""A discrete-event simulator of a server, run by KVFlow's own policy."""
