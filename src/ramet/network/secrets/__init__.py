"""Values that the sandbox never holds: put in where a request has a placeholder, masked where an answer repeats them.

Works on bytes and knows no connection. Start with ``guest_secrets``.
"""
