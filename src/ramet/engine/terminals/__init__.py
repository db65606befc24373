"""Programs on terminals of a sandbox, and the calls about them. Start at ``terminals``."""
