"""`pip` in a sandbox: packages from the engine's store where possible. Start at ``pip_magic``."""
