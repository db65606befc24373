"""The proxy's HTTP/1. Heads are read strictly and written anew, so that a server reads what we have decided on.

May import the rest of ``network``. Start reading at ``forwarding``; ``heads`` and ``framing`` say what is refused.
"""
