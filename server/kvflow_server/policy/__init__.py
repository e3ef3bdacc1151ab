"""Pure policy: steps, priorities, victims, prefetch, admission. No sglang, no torch, no clock."""
