"""The network of a sandbox as it travels: what is asked for, rules, secrets and where they may stand. No I/O."""
