"""Commands about the sandboxes of a server: one module per command, named after it. They use the public SDK.

Start at ``create`` or ``exec``; ``copying`` is what `ramet cp` and `--upload` share.
"""
