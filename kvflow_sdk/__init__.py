"""KVFlow client SDK."""
