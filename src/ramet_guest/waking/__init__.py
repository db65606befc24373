"""Before the freeze and after the thaw: memory, warm-up, pids, secrets, random generators. Start at ``thawing``."""
