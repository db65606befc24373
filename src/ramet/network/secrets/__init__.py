"""Values that the sandbox never holds: inserted where a request has a placeholder, masked where an answer repeats them.

Works on bytes and knows no connections. Start with ``peer_secrets``.
"""
