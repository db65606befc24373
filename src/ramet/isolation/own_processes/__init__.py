"""Walls around our own processes (worker, proxy, introducer) rather than around a sandbox, and host uids of engines."""
