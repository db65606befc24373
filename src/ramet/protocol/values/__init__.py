"""The frozen values inside frames: what a sandbox is made from, and what comes back from it. No I/O."""
